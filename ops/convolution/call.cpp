#include "ops/convolution/call.h"

#include <algorithm>
#include <span>

#include "backend/cpu/convolution/convolution.h"
#include "backend/cpu/convolution/patches.h"
#include "backend/cpu/convolution/tile_convolution.h"
#include "backend/cpu/winograd/winograd.h"
#include "ops/kernels/own_kernel.h"
#include "ops/record/call.h"

namespace hetero::ops {
namespace {

using backend::ConvolutionGeometry;

// Products of Winograd's have as many as a group has channels.
constexpr int64_t kFewestTerms = 16;

// A list of `rank` numbers, or of one that stands for all.
bool read_list(Decoder& decoder, size_t rank, Numbers3& list) {
  const Tag tag = decoder.next();
  if (tag != Tag::kSizes && tag != Tag::kIntegers) return false;
  const auto length = decoder.get<uint32_t>();
  for (uint32_t i = 0; i < length; ++i) {
    list.push_back(tag == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>());
  }
  if (list.size() == 1) list.resize(rank, list[0]);
  return list.size() == rank;
}

// stride, padding, dilation, transposed, output_padding, groups.
bool read_settings(Decoder& decoder, size_t rank, ConvolutionSettings& settings) {
  if (!read_list(decoder, rank, settings.stride) || !read_list(decoder, rank, settings.padding) ||
      !read_list(decoder, rank, settings.dilation)) {
    return false;
  }
  if (decoder.next() != Tag::kBoolean) return false;
  settings.transposed = decoder.get<uint8_t>() != 0;
  if (!read_list(decoder, rank, settings.output_padding)) return false;
  const Tag tag = decoder.next();
  if (tag != Tag::kSize && tag != Tag::kInteger) return false;
  settings.groups = decoder.integer(tag);
  return settings.groups >= 1;
}

// The type of the numbers if every operand has such, dense, in one of the two layouts.
std::optional<backend::Element> element_of_all(const graph::Invocation& invocation) {
  const graph::DType dtype = window_of(invocation, 0).dtype;
  for (int i = 0; i < invocation.node->operand_count; ++i) {
    const graph::Window& window = window_of(invocation, i);
    if (window.dtype != dtype || window.numel == 0 || invocation.operands[i].bits != 0 ||
        !(window.contiguous || is_by_pixels(window))) {
      return std::nullopt;
    }
  }
  return element_of(dtype);
}

bool all_row_major(const graph::Invocation& invocation) {
  for (int i = 0; i < invocation.node->operand_count; ++i) {
    if (!window_of(invocation, i).contiguous) return false;
  }
  return true;
}

// The geometry of input [images, channels, (height,) width] and weight [outputs, channels,
// (kernel_height,) kernel_width].
bool geometry_of(const graph::Window& input, const graph::Window& weight, const ConvolutionSettings& settings,
                 ConvolutionGeometry& geometry) {
  if (input.rank != weight.rank || input.sizes()[1] != weight.sizes()[1] * settings.groups) return false;
  const bool planar = input.rank == 4;
  const size_t last = planar ? 1 : 0;
  geometry = {.images = input.sizes()[0],
              .channels = input.sizes()[1],
              .height = planar ? input.sizes()[2] : 1,
              .width = input.sizes()[last + 2],
              .outputs = weight.sizes()[0],
              .kernel_height = planar ? weight.sizes()[2] : 1,
              .kernel_width = weight.sizes()[last + 2],
              .stride_y = planar ? settings.stride[0] : 1,
              .stride_x = settings.stride[last],
              .padding_y = planar ? settings.padding[0] : 0,
              .padding_x = settings.padding[last],
              .dilation_y = planar ? settings.dilation[0] : 1,
              .dilation_x = settings.dilation[last]};
  return true;
}

// Whether the window is [images, outputs, (out_height,) out_width].
bool is_output(const graph::Window& window, const ConvolutionGeometry& geometry, int rank) {
  const std::span<const int64_t> sizes = window.sizes();
  return window.rank == rank && sizes[0] == geometry.images && sizes[1] == geometry.outputs &&
         (rank == 3 || sizes[2] == geometry.out_height()) && sizes[rank - 1] == geometry.out_width();
}

// With a depth: of a call of as much work on images, each of which has the rows of all depths below
// each other. False where the windows do not fit each other.
bool solid_geometry_of(const graph::Window& input, const graph::Window& weight, const graph::Window& output,
                       const ConvolutionSettings& settings, ConvolutionGeometry& geometry) {
  if (weight.rank != 5 || output.rank != 5 || input.sizes()[1] != weight.sizes()[1] * settings.groups) return false;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t reach = settings.dilation[d] * (weight.sizes()[d + 2] - 1) + 1;
    const int64_t room = input.sizes()[d + 2] + 2 * settings.padding[d] - reach;
    if (room < 0 || settings.stride[d] < 1 || output.sizes()[d + 2] != room / settings.stride[d] + 1) return false;
  }
  geometry = {.images = input.sizes()[0],
              .channels = input.sizes()[1],
              .height = output.sizes()[2] * output.sizes()[3] + weight.sizes()[2] * weight.sizes()[3] - 1,
              .width = input.sizes()[4],
              .outputs = weight.sizes()[0],
              .kernel_height = weight.sizes()[2] * weight.sizes()[3],
              .kernel_width = weight.sizes()[4],
              .stride_y = 1,
              .stride_x = settings.stride[2],
              .padding_y = 0,
              .padding_x = settings.padding[2],
              .dilation_y = 1,
              .dilation_x = settings.dilation[2]};
  return output.sizes()[0] == geometry.images && output.sizes()[1] == geometry.outputs;
}

// Of a transposed call: of one of as much work at each pixel of the input. False where the windows
// do not fit each other.
bool transposed_geometry_of(const graph::Window& input, const graph::Window& weight, const graph::Window& output,
                            const ConvolutionSettings& settings, ConvolutionGeometry& geometry) {
  if (input.rank > 4 || weight.rank != input.rank || output.rank != input.rank) return false;
  if (input.sizes()[1] != weight.sizes()[0]) return false;
  const size_t last = static_cast<size_t>(input.rank) - 1;
  const bool planar = input.rank == 4;
  for (size_t d = 0; d + 2 <= last; ++d) {
    const int64_t reach = settings.dilation[d] * (weight.sizes()[d + 2] - 1) + 1;
    const int64_t size = (input.sizes()[d + 2] - 1) * settings.stride[d] - 2 * settings.padding[d] + reach;
    if (output.sizes()[d + 2] != size + settings.output_padding[d]) return false;
  }
  geometry = {.images = input.sizes()[0],
              .channels = input.sizes()[1],
              .height = planar ? input.sizes()[2] + weight.sizes()[2] - 1 : 1,
              .width = input.sizes()[last] + weight.sizes()[last] - 1,
              .outputs = output.sizes()[1],
              .kernel_height = planar ? weight.sizes()[2] : 1,
              .kernel_width = weight.sizes()[last],
              .stride_y = 1,
              .stride_x = 1,
              .padding_y = 0,
              .padding_x = 0,
              .dilation_y = 1,
              .dilation_x = 1};
  return output.sizes()[0] == geometry.images && output.sizes()[1] == weight.sizes()[1] * settings.groups;
}

// Whether the gradient of the input is such a convolution: with so much padding that the kernel
// meets each pixel.
bool has_winograd_gradient(const ConvolutionGeometry& g) {
  return backend::fits_winograd(g) && g.padding_y <= 2 * g.dilation_y && g.padding_x <= 2 * g.dilation_x;
}

// The next arguments as tensors, or none of them; the positions of those that are there.
template <size_t kCount>
bool read_tensors(Decoder& decoder, int (&positions)[kCount]) {
  for (int& position : positions) {
    const Tag tag = decoder.next();
    if (tag == Tag::kTensor) {
      position = decoder.operand();
    } else if (tag == Tag::kNone || tag == Tag::kUndefined) {
      position = -1;
    } else {
      return false;
    }
  }
  return true;
}

// The rest of hetero::convolution_norm's arguments: weight, bias, mean, variance, training,
// momentum, epsilon.
bool read_norm(Decoder& decoder, ConvolutionNorm& norm) {
  int tensors[4];
  if (!read_tensors(decoder, tensors) || decoder.next() != Tag::kBoolean || decoder.get<uint8_t>() != 0) return false;
  norm = {.weight = tensors[0], .bias = tensors[1], .mean = tensors[2], .variance = tensors[3]};
  for (int i = 0; i < 2; ++i) {  // the last one counts
    const Tag tag = decoder.next();
    if (tag != Tag::kReal && tag != Tag::kShapeReal) return false;
    norm.epsilon = decoder.real(tag);
  }
  return norm.mean >= 0 && norm.variance >= 0;
}

}  // namespace

bool recognize_convolution(const graph::Invocation& invocation, bool with_norm, ConvolutionCall& call) {
  const graph::Node& node = *invocation.node;
  const std::optional<backend::Element> element = element_of_all(invocation);
  if (node.output_count != 1 || !element) return false;
  call.shape.element = *element;
  Decoder decoder(invocation.attributes, node.attribute_bytes);
  int tensors[3];
  if (!read_tensors(decoder, tensors) || tensors[0] != 0 || tensors[1] != 1) return false;
  call.input = 0;
  call.weight = 1;
  call.bias = tensors[2];
  call.output = node.operand_count - 1;
  const graph::Window &input = window_of(invocation, call.input), &weight = window_of(invocation, call.weight);
  const graph::Window& output = window_of(invocation, call.output);
  if (input.rank < 3 || input.rank > 5) return false;
  if (!read_settings(decoder, static_cast<size_t>(input.rank - 2), call.settings)) return false;
  if (with_norm && !read_norm(decoder, call.norm.emplace())) return false;
  ConvolutionGeometry& geometry = call.shape.geometry;
  if (call.settings.transposed) {
    if (!transposed_geometry_of(input, weight, output, call.settings, geometry)) return false;
  } else if (input.rank == 5) {
    if (!solid_geometry_of(input, weight, output, call.settings, geometry)) return false;
  } else if (!geometry_of(input, weight, call.settings, geometry) || !is_output(output, geometry, input.rank)) {
    return false;
  }
  call.shape.rank = input.rank;
  call.shape.groups = call.settings.groups;
  call.shape.input_last = !input.contiguous;
  call.shape.output_last = !output.contiguous;
  call.shape.weight_last = !weight.contiguous;
  if (input.rank <= 4 && !call.settings.transposed) {
    const bool of_floats = *element == backend::Element::kFloat32;
    const bool by_pixels = is_by_pixels(input) && is_by_pixels(output);
    const bool depthwise = weight.sizes()[1] == 1 && geometry.outputs == geometry.channels;
    call.has_patches = by_pixels && call.settings.groups == 1;
    call.has_addresses = !depthwise;
    if (by_pixels && call.settings.groups > 1 && backend::fits_tiles(geometry, *element)) {
      call.tile_sets = backend::tile_sets(geometry, call.settings.groups, *element);
    }
    call.has_winograd = of_floats && by_pixels && input.rank == 4 && weight.sizes()[1] >= kFewestTerms &&
                        backend::fits_winograd(geometry);
    call.input_planes = !is_by_pixels(input);
    call.output_planes = !is_by_pixels(output);
    call.is_product = call.has_patches && geometry.pointwise();
    if (of_floats && call.settings.groups == 1 && all_row_major(invocation) && backend::convolution_fits(geometry)) {
      call.ours = ConvolutionImplementation::kUnfolded;
    } else if (by_pixels && depthwise) {
      call.ours = ConvolutionImplementation::kDepthwise;
    }
  }
  if (call.settings.transposed && !with_norm && input.rank <= 4) {
    const ConvolutionSettings& s = call.settings;
    const auto all = [](const Numbers3& numbers, int64_t value) {
      return std::ranges::all_of(numbers, [=](int64_t one) { return one == value; });
    };
    const std::span<const int64_t> kernel = weight.sizes().subspan(2);
    call.spreads = s.groups == 1 && std::ranges::equal(kernel, s.stride) && all(s.padding, 0) && all(s.dilation, 1) &&
                   all(s.output_padding, 0) && is_by_pixels(input) && is_by_pixels(output);
    call.has_patches = call.spreads;
  }
  call.shape.work = call.settings.transposed ? ConvolutionWork::kTransposed
                    : call.bias >= 0         ? ConvolutionWork::kForwardWithBias
                                             : ConvolutionWork::kForward;
  const auto is_of_channels = [&](int operand) {
    return operand < 0 || window_of(invocation, operand).numel == geometry.outputs;
  };
  if (!is_of_channels(call.bias)) return false;
  return !call.norm || (is_of_channels(call.norm->weight) && is_of_channels(call.norm->bias) &&
                        is_of_channels(call.norm->mean) && is_of_channels(call.norm->variance));
}

bool recognize_convolution_backward(const graph::Invocation& invocation, ConvolutionCall& call) {
  const graph::Node& node = *invocation.node;
  if (node.operand_count != 3 + node.output_count || element_of_all(invocation) != backend::Element::kFloat32) {
    return false;
  }
  Decoder decoder(invocation.attributes, node.attribute_bytes);
  for (int i = 0; i < 3; ++i) {
    if (decoder.next() != Tag::kTensor) return false;
  }
  call.grad_output = 0;
  call.input = 1;
  call.weight = 2;
  const graph::Window& input = window_of(invocation, call.input);
  if (input.rank < 3 || input.rank > 4) return false;
  const Tag bias_sizes = decoder.next();
  if (bias_sizes == Tag::kSizes || bias_sizes == Tag::kIntegers) {
    for (auto left = decoder.get<uint32_t>(); left > 0; --left) {
      (void)(bias_sizes == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>());
    }
  } else if (bias_sizes != Tag::kNone) {
    return false;
  }
  if (!read_settings(decoder, static_cast<size_t>(input.rank - 2), call.settings)) return false;
  if (call.settings.transposed) return false;
  // The output mask: what it leaves out has no operand.
  if (decoder.next() != Tag::kList || decoder.get<uint32_t>() != 3) return false;
  int next = 3;
  for (int* gradient : {&call.grad_input, &call.grad_weight, &call.grad_bias}) {
    if (decoder.next() != Tag::kBoolean) return false;
    if (decoder.get<uint8_t>() != 0) *gradient = next++;
  }
  if (next != node.operand_count) return false;
  const graph::Window& weight = window_of(invocation, call.weight);
  ConvolutionGeometry& geometry = call.shape.geometry;
  if (!geometry_of(input, weight, call.settings, geometry)) return false;
  call.shape.rank = input.rank;
  call.shape.groups = call.settings.groups;
  const auto by_pixels = [&](int operand) { return operand < 0 || is_by_pixels(window_of(invocation, operand)); };
  const auto row_major = [&](int operand) { return operand < 0 || window_of(invocation, operand).contiguous; };
  const bool of_rows = row_major(call.weight) && row_major(call.grad_weight);
  if (of_rows && row_major(call.input) && row_major(call.grad_output) && row_major(call.grad_input) &&
      call.settings.groups == 1 && backend::convolution_fits(geometry)) {
    call.ours = ConvolutionImplementation::kUnfolded;
  } else if (by_pixels(call.input) && by_pixels(call.grad_output) && by_pixels(call.grad_input)) {
    call.shape.input_last = call.shape.output_last = true;
    const bool depthwise = weight.sizes()[1] == 1 && geometry.outputs == geometry.channels;
    if (of_rows && (depthwise || (geometry.pointwise() && call.settings.groups == 1)))
      call.ours = ConvolutionImplementation::kPixels;
    call.has_winograd = call.grad_input >= 0 && input.rank == 4 && has_winograd_gradient(geometry) &&
                        geometry.outputs / call.settings.groups >= kFewestTerms;
  }
  if (call.ours == ConvolutionImplementation::kStock && !call.has_winograd) return false;
  call.shape.work = ConvolutionWork::kBackward;
  call.shape.gradients =
      static_cast<uint8_t>((call.grad_input >= 0 ? kOfInput : 0) | (call.grad_weight >= 0 ? kOfWeight : 0) |
                           (call.grad_bias >= 0 ? kOfBias : 0));
  return is_output(window_of(invocation, call.grad_output), geometry, input.rank) &&
         (call.grad_input < 0 || window_of(invocation, call.grad_input).numel == input.numel) &&
         (call.grad_weight < 0 || window_of(invocation, call.grad_weight).numel == weight.numel) &&
         (call.grad_bias < 0 || window_of(invocation, call.grad_bias).numel == geometry.outputs);
}

}  // namespace hetero::ops
