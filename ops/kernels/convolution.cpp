#include "ops/kernels/convolution.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>
#include <vector>

#include "backend/cpu/convolution/convolution.h"
#include "backend/cpu/convolution/depthwise.h"
#include "backend/cpu/vector/scratch.h"
#include "ops/kernels/blas.h"
#include "ops/kernels/boxed.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/linear.h"
#include "ops/kernels/measure.h"
#include "ops/kernels/own_kernel.h"
#include "ops/memory/offered_memory.h"
#include "ops/memory/packed_weights.h"
#include "ops/record/call.h"

namespace hetero::ops {
namespace {

using Implementation = ConvolutionImplementation;
using backend::ConvolutionGeometry;

std::atomic<int64_t> measurements;
std::atomic<int> forced{-1};

// ---- recognizing a convolution ------------------------------------------------------------------

using Numbers3 = c10::SmallVector<int64_t, 3>;

// The arguments that both operators have behind their tensors.
struct Settings {
  Numbers3 stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;
};

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
bool read_settings(Decoder& decoder, size_t rank, Settings& settings) {
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

// The batch norm behind a convolution, operands by their positions: y * scale + shift for each
// channel.
struct Norm {
  int weight = -1, bias = -1, mean = -1, variance = -1;
  double epsilon = 0;
};

// A call of ours; operands by their positions, -1 where there is none.
struct Convolution {
  ConvolutionShape shape;
  Settings settings;
  std::optional<Norm> norm;
  // That of ours which can compute it; kStock where none can.
  Implementation ours = Implementation::kStock;
  bool is_product = false;  // of the pixels, with the channels of each together, by the weight
  int input, weight, bias = -1, grad_output = -1;
  int output = -1, grad_input = -1, grad_weight = -1, grad_bias = -1;
};

const graph::Window& window_of(const graph::Invocation& invocation, int operand) {
  return (*invocation.windows)[invocation.operands[operand].window];
}

// Whether the window is [images, channels, (depth,) (height,) width] with its channels last, and
// not row-major.
bool has_channels_last(const graph::Window& window) {
  if (window.rank < 3 || window.rank > 5 || !window.dense || window.contiguous) return false;
  const std::span<const int64_t> sizes = window.sizes(), strides = window.strides();
  const auto fits = [&](int dimension, int64_t stride) {
    return sizes[dimension] == 1 || strides[dimension] == stride;
  };
  if (!fits(1, 1)) return false;
  int64_t stride = sizes[1];
  for (int d = window.rank - 1; d > 1; --d) {
    if (!fits(d, stride)) return false;
    stride *= sizes[d];
  }
  return fits(0, stride);
}

// Whether every operand has dense float32 numbers, in one of the two layouts.
bool all_dense(const graph::Invocation& invocation) {
  for (int i = 0; i < invocation.node->operand_count; ++i) {
    const graph::Window& window = window_of(invocation, i);
    if (window.dtype != static_cast<graph::DType>(at::kFloat) || window.numel == 0 ||
        invocation.operands[i].bits != 0 || !(window.contiguous || has_channels_last(window))) {
      return false;
    }
  }
  return true;
}

bool all_row_major(const graph::Invocation& invocation) {
  for (int i = 0; i < invocation.node->operand_count; ++i) {
    if (!window_of(invocation, i).contiguous) return false;
  }
  return true;
}

// The geometry of input [images, channels, (height,) width] and weight [outputs, channels,
// (kernel_height,) kernel_width].
bool geometry_of(const graph::Window& input, const graph::Window& weight, const Settings& settings,
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
                       const Settings& settings, ConvolutionGeometry& geometry) {
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
                            const Settings& settings, ConvolutionGeometry& geometry) {
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
bool read_norm(Decoder& decoder, Norm& norm) {
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

bool recognize_forward(const graph::Invocation& invocation, Convolution& call, bool with_norm = false) {
  const graph::Node& node = *invocation.node;
  if (node.output_count != 1 || !all_dense(invocation)) return false;
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
  call.shape.groups = call.settings.groups;
  call.shape.input_last = !input.contiguous;
  call.shape.output_last = !output.contiguous;
  const bool planar = input.rank <= 4 && !call.settings.transposed;
  const bool all_last = call.shape.input_last && call.shape.output_last;
  if (planar && call.settings.groups == 1 && all_row_major(invocation) && backend::convolution_fits(geometry)) {
    call.ours = Implementation::kUnfolded;
  } else if (planar && all_last && weight.contiguous && weight.sizes()[1] == 1 &&
             geometry.outputs == geometry.channels) {
    call.ours = Implementation::kDepthwise;
  }
  call.is_product = planar && call.settings.groups == 1 && geometry.pointwise() && (all_last || geometry.pixels() == 1);
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

bool recognize_backward(const graph::Invocation& invocation, Convolution& call) {
  const graph::Node& node = *invocation.node;
  if (node.operand_count != 3 + node.output_count || !all_dense(invocation) || !all_row_major(invocation)) return false;
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
  if (call.settings.transposed || call.settings.groups != 1) return false;
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
  if (backend::convolution_fits(geometry)) call.ours = Implementation::kUnfolded;
  call.shape.work = ConvolutionWork::kBackward;
  call.shape.gradients =
      static_cast<uint8_t>((call.grad_input >= 0 ? kOfInput : 0) | (call.grad_weight >= 0 ? kOfWeight : 0) |
                           (call.grad_bias >= 0 ? kOfBias : 0));
  return is_output(window_of(invocation, call.grad_output), geometry, input.rank) &&
         (call.grad_input < 0 || window_of(invocation, call.grad_input).numel == input.numel) &&
         (call.grad_weight < 0 || window_of(invocation, call.grad_weight).numel == weight.numel) &&
         (call.grad_bias < 0 || window_of(invocation, call.grad_bias).numel == geometry.outputs);
}

// ---- packed weights -----------------------------------------------------------------------------

// oneDNN's convolutions, as torch.compile reaches them: torch/csrc has no header for them. Absent
// where torch was built without oneDNN, or declares them otherwise. Called by their types, they
// take no memory for their arguments.
struct OneDnn {
  using Pack = at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t,
                          at::OptionalIntArrayRef);
  using Scalars = c10::List<std::optional<at::Scalar>>;
  using Convolve = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, at::IntArrayRef,
                              at::IntArrayRef, at::IntArrayRef, int64_t, std::string_view, Scalars,
                              std::optional<std::string_view>);
  using PackTransposed = at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                    at::IntArrayRef, int64_t, at::OptionalIntArrayRef);
  using ConvolveTransposed = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                        at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t,
                                        std::string_view, Scalars, std::optional<std::string_view>);
  std::optional<c10::TypedOperatorHandle<Pack>> pack;
  std::optional<c10::TypedOperatorHandle<Convolve>> convolve;
  std::optional<c10::TypedOperatorHandle<PackTransposed>> pack_transposed;
  std::optional<c10::TypedOperatorHandle<ConvolveTransposed>> convolve_transposed;
  Scalars no_scalars;
  OneDnn() {
    pack = find<Pack>("mkldnn::_reorder_convolution_weight");
    convolve = find<Convolve>("mkldnn::_convolution_pointwise");
    pack_transposed = find<PackTransposed>("mkldnn::_reorder_convolution_transpose_weight");
    convolve_transposed = find<ConvolveTransposed>("mkldnn::_convolution_transpose_pointwise");
  }
  bool is_there(bool transposed = false) const {
    const bool found = transposed ? pack_transposed && convolve_transposed : pack && convolve;
    return found && at::globalContext().userEnabledMkldnn();
  }

 private:
  template <typename Signature>
  static std::optional<c10::TypedOperatorHandle<Signature>> find(const char* name) {
    const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema({name, ""});
    if (!op) return std::nullopt;
    try {
      return op->typed<Signature>();
    } catch (const c10::Error&) {
      return std::nullopt;  // other arguments
    }
  }
};

const OneDnn& one_dnn() {
  static const OneDnn found;
  return found;
}

// Of a signal: of the image with one row that it is to oneDNN's operators.
Settings of_one_row(const Settings& signal) {
  Settings image = signal;
  const auto prepend = [](Numbers3& list, int64_t number) { list.insert(list.begin(), number); };
  prepend(image.stride, 1);
  prepend(image.padding, 0);
  prepend(image.dilation, 1);
  prepend(image.output_padding, 0);
  return image;
}

at::Tensor packed_filter(const Settings& settings, const at::Tensor& weight, at::IntArrayRef input_sizes) {
  if (weight.dim() == 3) {
    return packed_filter(of_one_row(settings), weight.unsqueeze(2),
                         {input_sizes[0], input_sizes[1], 1, input_sizes[2]});
  }
  if (settings.transposed) {
    return one_dnn().pack_transposed->call(weight, settings.padding, settings.output_padding, settings.stride,
                                           settings.dilation, settings.groups, input_sizes);
  }
  return one_dnn().pack->call(weight, settings.padding, settings.stride, settings.dilation, settings.groups,
                              input_sizes);
}

// The result has its channels last.
at::Tensor convolve_packed(const Settings& settings, const at::Tensor& input, const at::Tensor& packed,
                           const std::optional<at::Tensor>& bias) {
  if (input.dim() == 3) return convolve_packed(of_one_row(settings), input.unsqueeze(2), packed, bias).squeeze(2);
  if (settings.transposed) {
    return one_dnn().convolve_transposed->call(input, packed, bias, settings.padding, settings.output_padding,
                                               settings.stride, settings.dilation, settings.groups, "none",
                                               one_dnn().no_scalars, std::nullopt);
  }
  return one_dnn().convolve->call(input, packed, bias, settings.padding, settings.stride, settings.dilation,
                                  settings.groups, "none", one_dnn().no_scalars, std::nullopt);
}

PixelProduct product_of(const Convolution& call) {
  const ConvolutionGeometry& geometry = call.shape.geometry;
  return {.input = call.input,
          .weight = call.weight,
          .bias = call.bias,
          .output = call.output,
          .pixels = geometry.images * geometry.pixels(),
          .channels = geometry.channels,
          .outputs = geometry.outputs};
}

// Null where nothing can keep a packed form of the weight.
PackedWeights* packed_filters(const graph::Invocation& invocation, const Convolution& call) {
  const bool may_pack = call.shape.work != ConvolutionWork::kBackward && one_dnn().is_there(call.settings.transposed);
  return may_pack ? PackedWeights::of_operand(invocation, call.weight) : nullptr;
}

bool may_pack_more() { return config().packed_bytes.load(std::memory_order_relaxed) > 0; }

// ---- running ------------------------------------------------------------------------------------

// What a call reads and writes.
struct Numbers {
  const float* input = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  const float* grad_output = nullptr;
  float* output = nullptr;
  backend::ConvolutionGradients gradients;
};

const float* read(const graph::Invocation& invocation, int operand) {
  if (operand < 0) return nullptr;
  return static_cast<const float*>(invocation.data[operand]) + window_of(invocation, operand).offset;
}

void run_unfolded(const ConvolutionShape& shape, const Numbers& numbers) {
  if (shape.work == ConvolutionWork::kBackward) {
    backend::convolution_backward(shape.geometry, numbers.grad_output, numbers.input, numbers.weight, numbers.gradients,
                                  &sgemm);
  } else {
    backend::convolution_forward(shape.geometry, numbers.input, numbers.weight, numbers.bias, numbers.output, &sgemm);
  }
}

void run_depthwise(const ConvolutionShape& shape, const Numbers& numbers, const float* taps) {
  backend::depthwise({.geometry = shape.geometry,
                      .input = numbers.input,
                      .taps = taps,
                      .bias = numbers.bias,
                      .output = numbers.output});
}

at::IntArrayRef sizes_of(const graph::Window& window) { return {window.dims, static_cast<size_t>(window.rank)}; }

// Those of backend::Depthwise.
at::Tensor taps_of(const ConvolutionGeometry& geometry, const float* weight) {
  at::Tensor taps = at::empty({geometry.kernel() * geometry.channels}, at::TensorOptions(at::kFloat));
  backend::depthwise_taps(geometry, weight, taps.mutable_data_ptr<float>());
  return taps;
}

// Whether the operands have their values already, or only those that have a binding.
enum class Values : uint8_t { kAll, kBound };

// As many images of a call as speak for all, with memory of their own for the results. Operands
// without values are ones.
class Sample {
 public:
  Sample(const graph::Invocation& invocation, const Convolution& call, Values values)
      : shape_(call.shape), settings_(call.settings), aliases_(invocation) {
    // Multiplications: some milliseconds.
    constexpr int64_t kMostWork = int64_t{256} << 20;
    ConvolutionGeometry& geometry = shape_.geometry;
    const int64_t work = geometry.positions() * geometry.outputs * geometry.channels * geometry.kernel();
    geometry.images = std::min(geometry.images, std::max<int64_t>(1, kMostWork / work));
    const auto valued = [&](int operand, at::Tensor part) {
      const bool has_binding =
          invocation.bindings != nullptr && invocation.bindings[invocation.operands[operand].buffer] != nullptr;
      if (values == Values::kAll || has_binding) return part;
      return at::empty_strided(part.sizes(), part.strides(), part.options()).fill_(1);
    };
    input_ = valued(call.input, images(aliases_.operand(call.input)));
    weight_ = valued(call.weight, aliases_.operand(call.weight));
    if (call.bias >= 0) bias_ = valued(call.bias, aliases_.operand(call.bias));
    if (call.grad_output >= 0) grad_output_ = valued(call.grad_output, images(aliases_.operand(call.grad_output)));
    numbers_ = {.input = input_.const_data_ptr<float>(),
                .weight = weight_.const_data_ptr<float>(),
                .bias = bias_ ? bias_->const_data_ptr<float>() : nullptr,
                .grad_output = grad_output_.defined() ? grad_output_.const_data_ptr<float>() : nullptr,
                .output = nullptr,
                .gradients = {}};
    const auto memory = [&](bool wanted, int64_t floats, at::Tensor& results) -> float* {
      if (!wanted) return nullptr;
      results = at::empty({floats}, input_.options());
      return results.mutable_data_ptr<float>();
    };
    if (shape_.work != ConvolutionWork::kBackward) {
      const graph::Window& output = window_of(invocation, call.output);
      std::vector<int64_t> sizes(output.sizes().begin(), output.sizes().end());
      sizes[0] = geometry.images;
      results_[0] = at::empty_strided(sizes, at::IntArrayRef(output.strides().data(), sizes.size()), input_.options());
      numbers_.output = results_[0].mutable_data_ptr<float>();
    }
    numbers_.gradients.input = memory(call.grad_input >= 0, input_.numel(), results_[1]);
    numbers_.gradients.weight = memory(call.grad_weight >= 0, weight_.numel(), results_[2]);
    numbers_.gradients.bias = memory(call.grad_bias >= 0, geometry.outputs, results_[3]);
  }

  Measured measure(const std::vector<Implementation>& candidates) {
    ++measurements;
    return ops::measure(candidates.size(), [&](size_t i) { run(candidates[i]); });
  }

 private:
  at::Tensor images(const at::Tensor& tensor) { return tensor.narrow(0, 0, shape_.geometry.images); }

  void run(Implementation implementation) {
    switch (implementation) {
      case Implementation::kUnfolded:
        run_unfolded(shape_, numbers_);
        break;
      case Implementation::kPacked:
        if (!packed_.defined()) packed_ = packed_filter(settings_, weight_, input_.sizes());
        make_packed();
        break;
      case Implementation::kDepthwise:
        if (!taps_.defined()) taps_ = taps_of(shape_.geometry, numbers_.weight);
        run_depthwise(shape_, numbers_, taps_.const_data_ptr<float>());
        break;
      case Implementation::kStock:
        run_stock();
        break;
    }
  }

  // As run_packed() does.
  void make_packed() {
    const OfferedMemory offer(results_[0].mutable_data_ptr(), shape_.output_last ? results_[0].nbytes() : 0);
    const at::Tensor made = convolve_packed(settings_, input_, packed_, bias_);
    if (made.const_data_ptr() != results_[0].const_data_ptr()) results_[0].copy_(made);
  }

  void run_stock() {
    if (shape_.work != ConvolutionWork::kBackward) {
      // The copy is made after each call of the stock kernel: KernelTensors::deliver.
      results_[0].copy_(at::convolution(input_, weight_, bias_, settings_.stride, settings_.padding, settings_.dilation,
                                        settings_.transposed, settings_.output_padding, settings_.groups));
      return;
    }
    const auto wanted = [&](ConvolutionGradient gradient) { return (shape_.gradients & gradient) != 0; };
    at::convolution_backward(grad_output_, input_, weight_, at::IntArrayRef(shape_.geometry.outputs), settings_.stride,
                             settings_.padding, settings_.dilation, false, settings_.output_padding, 1,
                             {wanted(kOfInput), wanted(kOfWeight), wanted(kOfBias)});
  }

  ConvolutionShape shape_;
  const Settings& settings_;
  KernelTensors aliases_;
  Numbers numbers_;
  at::Tensor input_, weight_, grad_output_, packed_, taps_;
  std::optional<at::Tensor> bias_;
  std::array<at::Tensor, 4> results_;
};

ConvolutionChoice choose(const graph::Invocation& invocation, const Convolution& call, Values values) {
  if (call.ours == Implementation::kStock) return {};
  const std::vector<Implementation> candidates{Implementation::kStock, call.ours};
  const Measured measured = Sample(invocation, call, values).measure(candidates);
  return {.plain = candidates[fastest(measured)], .sure = measured.repeated};
}

// With `guesses` also where the machine was too busy.
ConvolutionChoice try_packing(const graph::Invocation& invocation, const Convolution& call, ConvolutionChoice choice,
                              Values values = Values::kAll, bool guesses = false) {
  const Measured measured = Sample(invocation, call, values).measure({choice.plain, Implementation::kPacked});
  if (measured.repeated || guesses) {
    choice.sure = choice.sure && measured.repeated;
    choice.packed = measured.seconds[1] < measured.seconds[0];
  }
  return choice;
}

ConvolutionChoice chosen(const graph::Invocation& invocation, const Convolution& call, PackedWeights* filters) {
  if (const int implementation = forced.load(std::memory_order_relaxed); implementation >= 0) {
    const auto wanted = static_cast<Implementation>(implementation);
    if (wanted == Implementation::kPacked) return {.packed = true};
    return {.plain = wanted, .packed = false};
  }
  ConvolutionChoices& choices = convolution_choices();
  std::optional<ConvolutionChoice> choice = choices.find(call.shape);
  if (!choice) {
    choice = choose(invocation, call, Values::kAll);
    choices.learn(call.shape, *choice);
  }
  // A call of similar size may have been one that ours can compute.
  if (choice->plain != call.ours) choice->plain = Implementation::kStock;
  if (!choice->packed && filters != nullptr && filters->worth_packing() && may_pack_more()) {
    choice = try_packing(invocation, call, *choice);
    if (choice->packed) {
      choices.learn(call.shape, *choice);
    } else {
      filters->forget_uses();  // tried again after as many uses
    }
  }
  return *choice;
}

PackedKey key_of(const graph::Invocation& invocation, const Convolution& call) {
  const graph::Window& weight = window_of(invocation, call.weight);
  const Settings& settings = call.settings;
  PackedKey key{.form = PackedForm::kFilter,
                .element = backend::Element::kFloat32,
                .address = read(invocation, call.weight),
                .n = weight.sizes()[0],
                .k = weight.numel / weight.sizes()[0],
                .stride = weight.sizes()[weight.rank - 1],
                .columns = !weight.contiguous};
  auto next = key.settings.begin();
  for (const Numbers3* const list : {&settings.stride, &settings.padding, &settings.dilation}) {
    next = std::ranges::copy(*list, next).out;
  }
  *next++ = settings.groups;
  if (settings.transposed) {
    *next++ = 1;
    next = std::ranges::copy(settings.output_padding, next).out;
  }
  std::ranges::copy(weight.sizes().subspan(2, settings.stride.size() - 1), next);
  return key;
}

// The packed weight of the call; null where it runs without.
const at::Tensor* packed_now(const graph::Invocation& invocation, const Convolution& call,
                             const ConvolutionChoice& choice, PackedWeights* filters) {
  if (filters == nullptr || !choice.packed.value_or(false) || !filters->worth_packing()) return nullptr;
  const graph::Window& weight = window_of(invocation, call.weight);
  const PackedKey key = key_of(invocation, call);
  const int64_t bytes = weight.last_byte - weight.first_byte;
  return filters->find_or_make(key, bytes, [&] {
    KernelTensors tensors(invocation);
    at::Tensor packed =
        packed_filter(call.settings, tensors.operand(call.weight), sizes_of(window_of(invocation, call.input)));
    return PackedWeights::Made{std::move(packed), bytes};
  });
}

// The taps of a depthwise call, kept or in the thread's memory.
const float* taps_now(const graph::Invocation& invocation, const Convolution& call, PackedWeights* filters) {
  const ConvolutionGeometry& geometry = call.shape.geometry;
  const float* const weight = read(invocation, call.weight);
  const int64_t numbers = geometry.kernel() * geometry.channels;
  if (filters != nullptr && filters->worth_packing()) {
    PackedKey key = key_of(invocation, call);
    key.form = PackedForm::kTaps;
    const auto bytes = numbers * static_cast<int64_t>(sizeof(float));
    const auto make = [&] { return PackedWeights::Made{taps_of(geometry, weight), bytes}; };
    if (const at::Tensor* const taps = filters->find_or_make(key, bytes, make)) return taps->const_data_ptr<float>();
  }
  static thread_local backend::Scratch memory;
  auto* const taps = memory.get<float>(numbers);
  backend::depthwise_taps(geometry, weight, taps);
  return taps;
}

// An output operand's memory: as planned, or brought.
class Output {
 public:
  Output(const graph::Invocation& invocation, KernelTensors& tensors, int operand)
      : tensors_(tensors), operand_(operand) {
    if (operand < 0 || tensors.has_memory(operand)) return;
    const graph::Window& window = window_of(invocation, operand);
    const at::IntArrayRef strides(window.strides().data(), static_cast<size_t>(window.rank));
    brought_ = at::empty_strided(sizes_of(window), strides, at::TensorOptions(at::kFloat));
  }
  float* numbers() {
    if (operand_ < 0) return nullptr;
    return brought_.defined() ? brought_.mutable_data_ptr<float>()
                              : tensors_.operand(operand_).mutable_data_ptr<float>();
  }
  void deliver() {
    if (brought_.defined()) tensors_.deliver(operand_, std::move(brought_));
  }

 private:
  KernelTensors& tensors_;
  int operand_;
  at::Tensor brought_;
};

// `bias` in place of the call's own, if given.
void run_packed(const graph::Invocation& invocation, const Convolution& call, const at::Tensor& packed,
                const at::Tensor* bias = nullptr) {
  run_as_operator(OwnKernel::kPackedConvolution, invocation, [&] {
    KernelTensors tensors(invocation);
    std::optional<at::Tensor> shift;
    if (bias != nullptr) {
      shift = *bias;
    } else if (call.bias >= 0) {
      shift = tensors.operand(call.bias);
    }
    std::optional<OfferedMemory> offer;
    if (call.shape.output_last && tensors.has_memory(call.output)) {
      const at::Tensor& place = tensors.operand(call.output);
      offer.emplace(place.mutable_data_ptr(), place.nbytes());
    }
    tensors.deliver(call.output, convolve_packed(call.settings, tensors.operand(call.input), packed, shift));
  });
}

// ---- with a norm --------------------------------------------------------------------------------

// The filter and the bias in which the norm is; null where nothing can keep them. They are made
// anew when bytes of any of their storages change. REQUIRES: the executor lock.
struct Folded {
  const at::Tensor* filter = nullptr;
  const at::Tensor* bias = nullptr;
};

Folded fold(const graph::Invocation& invocation, const Convolution& call, PackedWeights& filters) {
  PackedKey key = key_of(invocation, call);
  auto place = key.settings.end() - 6;
  *place++ = std::bit_cast<int64_t>(call.norm->epsilon);
  size_t i = 0;
  for (const int operand : {call.bias, call.norm->weight, call.norm->bias, call.norm->mean, call.norm->variance}) {
    PackedWeights* const derived = operand < 0 ? nullptr : PackedWeights::of_operand(invocation, operand);
    if (operand >= 0 && derived == nullptr) return {};
    *place++ = reinterpret_cast<intptr_t>(read(invocation, operand));
    key.serials[i++] = derived == nullptr ? 0 : derived->serial();
  }
  std::optional<KernelTensors> tensors;
  const auto values = [&](int operand) {
    if (!tensors) tensors.emplace(invocation);
    return operand < 0 ? at::Tensor() : tensors->operand(operand).to(at::kDouble);
  };
  const auto norm = [&] {
    return affine_norm(values(call.norm->weight), values(call.norm->bias), values(call.norm->mean),
                       values(call.norm->variance), call.norm->epsilon);
  };
  const auto made_of = [](at::Tensor made) {
    // Infinite ones would make sums over a window NaN.
    const bool finite = at::isfinite(made).all().item<bool>();
    const auto bytes = static_cast<int64_t>(made.nbytes());
    return PackedWeights::Made{finite ? std::move(made) : at::Tensor(), bytes};
  };
  const graph::Window& weight = window_of(invocation, call.weight);
  Folded folded;
  folded.filter = filters.find_or_make(key, weight.last_byte - weight.first_byte, [&] {
    std::vector<int64_t> along(static_cast<size_t>(weight.rank), 1);
    along[0] = -1;
    PackedWeights::Made made = made_of((values(call.weight) * norm().scale.view(along)).to(at::kFloat));
    if (made.packed.defined()) {
      made.packed = packed_filter(call.settings, made.packed, sizes_of(window_of(invocation, call.input)));
    }
    return made;
  });
  key.form = PackedForm::kFilterBias;
  const int64_t bytes = call.shape.geometry.outputs * static_cast<int64_t>(sizeof(float));
  folded.bias = filters.find_or_make(key, bytes, [&] {
    const auto [scale, shift] = norm();
    return made_of((call.bias < 0 ? shift : shift + values(call.bias) * scale).to(at::kFloat));
  });
  return folded;
}

bool run_with_norm(const graph::Invocation& invocation, const Convolution& call) {
  PackedWeights* const filters = packed_filters(invocation, call);
  if (filters == nullptr) return false;
  Isolated isolated;
  filters->note_use();
  // Earlier than other weights: without, it is two passes.
  constexpr int kUses = 2;
  if (!filters->was_used(kUses) || !may_pack_more()) return false;
  const Folded folded = fold(invocation, call, *filters);
  if (folded.filter == nullptr || folded.bias == nullptr) {
    // No room. Some may be taken by norms that are no more.
    if (!filters->empty()) binding_of(invocation, call.weight)->derived.reset();
    return false;
  }
  if (!folded.filter->defined() || !folded.bias->defined()) return false;
  run_packed(invocation, call, *folded.filter, folded.bias);
  return true;
}

bool run_recognized(const graph::Invocation& invocation, Convolution& call) {
  const bool is_forced = forced.load(std::memory_order_relaxed) >= 0;
  if (call.is_product && !is_forced && run_pixel_product(invocation, product_of(call))) return true;
  call.shape.threads = at::get_num_threads();
  PackedWeights* const filters = packed_filters(invocation, call);
  if (call.ours == Implementation::kStock && filters == nullptr) return false;
  Isolated isolated;
  if (filters != nullptr) filters->note_use();
  const ConvolutionChoice choice = chosen(invocation, call, filters);
  if (const at::Tensor* const packed = packed_now(invocation, call, choice, filters)) {
    run_packed(invocation, call, *packed);
    return true;
  }
  if (choice.plain == Implementation::kStock || choice.plain != call.ours) return false;
  if (call.ours == Implementation::kDepthwise) {
    run_as_operator(OwnKernel::kDepthwise, invocation, [&] {
      KernelTensors tensors(invocation);
      Output output(invocation, tensors, call.output);
      const float* const taps = taps_now(invocation, call, filters);
      run_depthwise(call.shape,
                    {.input = read(invocation, call.input),
                     .weight = nullptr,
                     .bias = read(invocation, call.bias),
                     .output = output.numbers(),
                     .gradients = {}},
                    taps);
      output.deliver();
    });
    return true;
  }
  const bool backward = call.shape.work == ConvolutionWork::kBackward;
  run_as_operator(backward ? OwnKernel::kConvolutionBackward : OwnKernel::kConvolution, invocation, [&] {
    KernelTensors tensors(invocation);
    Output output(invocation, tensors, call.output), grad_input(invocation, tensors, call.grad_input),
        grad_weight(invocation, tensors, call.grad_weight), grad_bias(invocation, tensors, call.grad_bias);
    run_unfolded(call.shape, {.input = read(invocation, call.input),
                              .weight = read(invocation, call.weight),
                              .bias = read(invocation, call.bias),
                              .grad_output = read(invocation, call.grad_output),
                              .output = output.numbers(),
                              .gradients = {grad_input.numbers(), grad_weight.numbers(), grad_bias.numbers()}});
    for (Output* one : {&output, &grad_input, &grad_weight, &grad_bias}) one->deliver();
  });
  return true;
}

// What chosen() gives for such calls from now on. Where the machine is too busy, what was measured
// last is taken for what it is.
void settle(const graph::Invocation& invocation, const Convolution& call, const PackedWeights* filters) {
  constexpr int kMostTries = 3;
  if (forced.load(std::memory_order_relaxed) >= 0) return;
  ConvolutionChoices& choices = convolution_choices();
  std::optional<ConvolutionChoice> choice = choices.settled(call.shape);
  for (int tries = 0; !choice || (!choice->sure && tries > 0 && tries < kMostTries); ++tries) {
    choice = choose(invocation, call, Values::kBound);
  }
  if (choice->plain != call.ours) choice->plain = Implementation::kStock;
  for (int tries = 1; filters != nullptr && may_pack_more() && !choice->packed && tries <= kMostTries; ++tries) {
    choice = try_packing(invocation, call, *choice, Values::kBound, tries == kMostTries);
  }
  choices.settle(call.shape, *choice);
}

void prepare(const graph::Invocation& invocation, Convolution& call) {
  if (call.is_product) return prepare_pixel_product(invocation, product_of(call));
  call.shape.threads = at::get_num_threads();
  PackedWeights* const filters = packed_filters(invocation, call);
  if (call.ours == Implementation::kStock && filters == nullptr) return;
  if (filters != nullptr) filters->note_that_bytes_stay();
  Isolated isolated;
  settle(invocation, call, filters);
  const ConvolutionChoice choice = chosen(invocation, call, filters);
  const bool packed = packed_now(invocation, call, choice, filters) != nullptr;
  if (!packed && choice.plain == Implementation::kDepthwise) taps_now(invocation, call, filters);
}

// Whether others than the stock kernel may run at all.
bool ours_may_run() { return last_bits_may_vary() && has_sgemm(); }

}  // namespace

void prepare_convolution(const graph::Invocation& invocation) {
  Convolution call;
  if (ours_may_run() && recognize_forward(invocation, call)) prepare(invocation, call);
}

void prepare_convolution_backward(const graph::Invocation& invocation) {
  Convolution call;
  if (ours_may_run() && recognize_backward(invocation, call)) prepare(invocation, call);
}

bool run_convolution(const graph::Invocation& invocation) {
  Convolution call;
  return ours_may_run() && recognize_forward(invocation, call) && run_recognized(invocation, call);
}

bool run_convolution_norm(const graph::Invocation& invocation) {
  Convolution call;
  return ours_may_run() && recognize_forward(invocation, call, true) && run_with_norm(invocation, call);
}

bool run_convolution_backward(const graph::Invocation& invocation) {
  Convolution call;
  return ours_may_run() && recognize_backward(invocation, call) && run_recognized(invocation, call);
}

AffineNorm affine_norm(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                       const at::Tensor& variance, double epsilon) {
  AffineNorm norm{.scale = at::rsqrt(variance + epsilon), .shift = {}};
  if (weight.defined()) norm.scale = norm.scale * weight;
  norm.shift = mean * norm.scale * -1;
  if (bias.defined()) norm.shift = norm.shift + bias;
  return norm;
}

bool norms_may_be_folded() { return ours_may_run() && one_dnn().is_there() && may_pack_more(); }

at::Tensor convolution_norm(const at::Tensor& input, const at::Tensor& filter,
                            const std::optional<at::Tensor>& filter_bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean, const at::Tensor& variance,
                            bool, double, double epsilon) {
  at::Tensor result =
      at::convolution(input, filter, filter_bias, stride, padding, dilation, transposed, output_padding, groups);
  std::vector<int64_t> along(static_cast<size_t>(result.dim()), 1);
  along[1] = -1;
  const AffineNorm norm =
      affine_norm(weight.value_or(at::Tensor()), bias.value_or(at::Tensor()), mean, variance, epsilon);
  return at::addcmul_out(result, norm.shift.view(along), result, norm.scale.view(along));
}

ConvolutionCounts convolution_counts() {
  ConvolutionCounts counts;
  for (const OwnKernel kernel : {OwnKernel::kConvolution, OwnKernel::kConvolutionBackward}) {
    counts.runs[static_cast<int>(Implementation::kUnfolded)] += counters().own_kernels[static_cast<size_t>(kernel)];
  }
  counts.runs[static_cast<int>(Implementation::kPacked)] =
      counters().own_kernels[static_cast<size_t>(OwnKernel::kPackedConvolution)];
  counts.runs[static_cast<int>(Implementation::kDepthwise)] =
      counters().own_kernels[static_cast<size_t>(OwnKernel::kDepthwise)];
  counts.measurements = measurements;
  return counts;
}

void force_convolution_implementation(std::optional<ConvolutionImplementation> implementation) {
  forced = implementation ? static_cast<int>(*implementation) : -1;
}

}  // namespace hetero::ops
