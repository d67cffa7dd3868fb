#include "ops/convolution/choice.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace hetero::ops {
namespace {

constexpr const char* kNames[kConvolutionImplementations] = {"stock",  "unfolded", "pixels", "depthwise", "packed",
                                                             "panels", "tiles",    "direct", "winograd",  "dots"};
constexpr const char* kUntried = "untried";
constexpr const char* kLayouts[] = {"rows", "last"};
constexpr const char* kUnits[] = {"vectors", "tiles"};
constexpr const char* kAlgorithms[] = {"sums", "winograd"};
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

std::array<int64_t, 24> ConvolutionShape::numbers() const {
  std::array<int64_t, 24> all{static_cast<int64_t>(element),
                              static_cast<int64_t>(work),
                              gradients,
                              rank,
                              groups,
                              input_last,
                              output_last,
                              weight_last,
                              tiles,
                              winograd,
                              threads};
  size_t i = 11;
  for_each_number(geometry, [&](int64_t number) { all[i++] = number; });
  return all;
}

std::string line_of(const ConvolutionShape& shape, const ConvolutionChoice& choice) {
  std::ostringstream line;
  line << kElementNames[static_cast<int>(shape.element)] << ' ' << kWorks[static_cast<int>(shape.work)] << ' '
       << static_cast<int>(shape.gradients) << ' ' << shape.rank;
  for_each_number(shape.geometry, [&](int64_t number) { line << ' ' << number; });
  line << ' ' << shape.groups << ' ' << kLayouts[shape.input_last] << ' ' << kLayouts[shape.output_last] << ' '
       << kLayouts[shape.weight_last] << ' ' << kUnits[shape.tiles] << ' ' << kAlgorithms[shape.winograd] << ' '
       << shape.threads << ' ' << to_string(choice.plain) << ' ' << (choice.kept ? to_string(*choice.kept) : kUntried);
  return line.str();
}

bool parse_line(const std::string& line, ConvolutionShape& shape, ConvolutionChoice& choice) {
  std::istringstream in(line);
  std::string element, work, input, output, weight, unit, algorithm, plain, kept;
  int gradients = 0;
  in >> element >> work >> gradients >> shape.rank;
  for_each_number(shape.geometry, [&](int64_t& number) { in >> number; });
  in >> shape.groups >> input >> output >> weight >> unit >> algorithm >> shape.threads >> plain >> kept;
  const int element_index = position(kElementNames, element), work_index = position(kWorks, work);
  const int input_index = position(kLayouts, input), output_index = position(kLayouts, output);
  const int weight_index = position(kLayouts, weight), unit_index = position(kUnits, unit);
  const int algorithm_index = position(kAlgorithms, algorithm);
  const int plain_index = position(kNames, plain), kept_index = position(kNames, kept);
  if (!in ||
      std::min({element_index, work_index, input_index, output_index, weight_index, unit_index, algorithm_index,
                plain_index}) < 0 ||
      (kept_index < 0 && kept != kUntried)) {
    return false;
  }
  shape.element = static_cast<backend::Element>(element_index);
  shape.work = static_cast<ConvolutionWork>(work_index);
  shape.gradients = static_cast<uint8_t>(gradients);
  shape.input_last = input_index == 1;
  shape.output_last = output_index == 1;
  shape.weight_last = weight_index == 1;
  shape.tiles = unit_index == 1;
  shape.winograd = algorithm_index == 1;
  choice = {.plain = static_cast<ConvolutionImplementation>(plain_index)};
  if (kept_index >= 0) choice.kept = static_cast<ConvolutionImplementation>(kept_index);
  return true;
}

ConvolutionChoices& convolution_choices() { return choices_of_process<ConvolutionChoices>(ConvolutionShape::kKind); }

}  // namespace hetero::ops
