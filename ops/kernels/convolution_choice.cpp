#include "ops/kernels/convolution_choice.h"

#include <bit>
#include <sstream>

namespace hetero::ops {
namespace {

constexpr const char* kNames[kConvolutionImplementations] = {"stock", "unfolded"};
constexpr const char* kWorks[] = {"forward", "forward+bias", "backward"};

// The geometry's numbers in the order of a line: sizes, kernel, strides, paddings, dilations.
template <typename Geometry, typename Visit>
void for_each_number(Geometry& geometry, Visit&& visit) {
  for (auto* number : {&geometry.images, &geometry.channels, &geometry.height, &geometry.width, &geometry.outputs,
                       &geometry.kernel_height, &geometry.kernel_width, &geometry.stride_y, &geometry.stride_x,
                       &geometry.padding_y, &geometry.padding_x, &geometry.dilation_y, &geometry.dilation_x}) {
    visit(*number);
  }
}

}  // namespace

const char* to_string(ConvolutionImplementation implementation) { return kNames[static_cast<int>(implementation)]; }

ConvolutionShape ConvolutionShape::rounded() const {
  constexpr int64_t kExact = 16;
  ConvolutionShape shape = *this;
  for (int64_t* size : {&shape.geometry.images, &shape.geometry.height, &shape.geometry.width}) {
    if (*size > kExact) *size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(*size)));
  }
  return shape;
}

std::array<int64_t, 16> ConvolutionShape::numbers() const {
  std::array<int64_t, 16> all{static_cast<int64_t>(work), gradients, threads};
  size_t i = 3;
  for_each_number(geometry, [&](int64_t number) { all[i++] = number; });
  return all;
}

std::string line_of(const ConvolutionShape& shape, const ConvolutionChoice& choice) {
  std::ostringstream line;
  line << kWorks[static_cast<int>(shape.work)] << ' ' << static_cast<int>(shape.gradients);
  for_each_number(shape.geometry, [&](int64_t number) { line << ' ' << number; });
  line << ' ' << shape.threads << ' ' << to_string(choice.implementation);
  return line.str();
}

bool parse_line(const std::string& line, ConvolutionShape& shape, ConvolutionChoice& choice) {
  std::istringstream in(line);
  std::string work, implementation;
  int gradients = 0;
  in >> work >> gradients;
  for_each_number(shape.geometry, [&](int64_t& number) { in >> number; });
  in >> shape.threads >> implementation;
  const int work_index = position(kWorks, work), implementation_index = position(kNames, implementation);
  if (!in || work_index < 0 || implementation_index < 0) return false;
  shape.work = static_cast<ConvolutionWork>(work_index);
  shape.gradients = static_cast<uint8_t>(gradients);
  choice = {static_cast<ConvolutionImplementation>(implementation_index)};
  return true;
}

ConvolutionChoices& convolution_choices() { return choices_of_process<ConvolutionChoices>(ConvolutionShape::kKind); }

}  // namespace hetero::ops
