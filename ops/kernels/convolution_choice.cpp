#include "ops/kernels/convolution_choice.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace hetero::ops {
namespace {

constexpr const char* kNames[kConvolutionImplementations] = {"stock", "unfolded", "packed", "depthwise"};
constexpr const char* kLayouts[] = {"rows", "last"};
constexpr const char* kPacked[] = {"plain", "packed", "untried"};
constexpr const char* kWorks[] = {"forward", "forward+bias", "backward", "transposed"};

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

std::array<int64_t, 19> ConvolutionShape::numbers() const {
  std::array<int64_t, 19> all{static_cast<int64_t>(work), gradients, groups, input_last, output_last, threads};
  size_t i = 6;
  for_each_number(geometry, [&](int64_t number) { all[i++] = number; });
  return all;
}

std::string line_of(const ConvolutionShape& shape, const ConvolutionChoice& choice) {
  std::ostringstream line;
  line << kWorks[static_cast<int>(shape.work)] << ' ' << static_cast<int>(shape.gradients);
  for_each_number(shape.geometry, [&](int64_t number) { line << ' ' << number; });
  line << ' ' << shape.groups << ' ' << kLayouts[shape.input_last] << ' ' << kLayouts[shape.output_last] << ' '
       << shape.threads << ' ' << to_string(choice.plain) << ' ' << kPacked[choice.packed ? int{*choice.packed} : 2];
  return line.str();
}

bool parse_line(const std::string& line, ConvolutionShape& shape, ConvolutionChoice& choice) {
  std::istringstream in(line);
  std::string work, input, output, plain, packed;
  int gradients = 0;
  in >> work >> gradients;
  for_each_number(shape.geometry, [&](int64_t& number) { in >> number; });
  in >> shape.groups >> input >> output >> shape.threads >> plain >> packed;
  const int work_index = position(kWorks, work), plain_index = position(kNames, plain);
  const int input_index = position(kLayouts, input), output_index = position(kLayouts, output);
  const int packed_index = position(kPacked, packed);
  if (!in || std::min({work_index, plain_index, input_index, output_index, packed_index}) < 0) return false;
  shape.work = static_cast<ConvolutionWork>(work_index);
  shape.gradients = static_cast<uint8_t>(gradients);
  shape.input_last = input_index == 1;
  shape.output_last = output_index == 1;
  choice = {.plain = static_cast<ConvolutionImplementation>(plain_index)};
  if (packed_index < 2) choice.packed = packed_index == 1;
  return true;
}

ConvolutionChoices& convolution_choices() { return choices_of_process<ConvolutionChoices>(ConvolutionShape::kKind); }

}  // namespace hetero::ops
