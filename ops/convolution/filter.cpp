#include "ops/convolution/filter.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cpu/convolution/depthwise.h"
#include "backend/cpu/convolution/image_layout.h"
#include "backend/cpu/convolution/patches.h"
#include "backend/cpu/convolution/tile_convolution.h"
#include "backend/cpu/few_outputs/few_outputs.h"
#include "backend/cpu/vector/scratch.h"
#include "backend/cpu/winograd/winograd.h"
#include "ops/kernels/blas.h"
#include "ops/kernels/own_kernel.h"
#include "ops/kernels/packed_product.h"
#include "ops/memory/offered_memory.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

using Implementation = ConvolutionImplementation;
using backend::FollowedResult;

// ---- oneDNN's convolutions ----------------------------------------------------------------------

// As torch.compile reaches them: torch/csrc has no header for them. Absent where torch was built
// without oneDNN, or declares them otherwise. Called by their types, they take no memory for their
// arguments.
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
  bool is_there(at::ScalarType dtype, bool transposed) const {
    const bool found = transposed ? pack_transposed && convolve_transposed : pack && convolve;
    return found && at::globalContext().userEnabledMkldnn() && onednn_computes(dtype);
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
ConvolutionSettings of_one_row(const ConvolutionSettings& signal) {
  ConvolutionSettings image = signal;
  const auto prepend = [](Numbers3& list, int64_t number) { list.insert(list.begin(), number); };
  prepend(image.stride, 1);
  prepend(image.padding, 0);
  prepend(image.dilation, 1);
  prepend(image.output_padding, 0);
  return image;
}

at::Tensor packed_filter(const ConvolutionSettings& settings, const at::Tensor& weight, at::IntArrayRef input_sizes) {
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
at::Tensor convolve_packed(const ConvolutionSettings& settings, const at::Tensor& input, const at::Tensor& packed,
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

// oneDNN would put them last, a number at a time.
at::Tensor with_channels_last(const at::Tensor& images) {
  if (images.dim() != 4 || images.scalar_type() != at::kFloat || !images.is_contiguous()) return images;
  if (images.is_contiguous(at::MemoryFormat::ChannelsLast)) return images;
  at::Tensor made = at::empty(images.sizes(), images.options(), at::MemoryFormat::ChannelsLast);
  backend::put_channels_last(images.const_data_ptr<float>(), images.size(0), images.size(1),
                             images.size(2) * images.size(3), backend::Element::kFloat32, made.mutable_data_ptr());
  return made;
}

at::ScalarType dtype_of(backend::Element element) {
  return element == backend::Element::kFloat32    ? at::kFloat
         : element == backend::Element::kBfloat16 ? at::kBFloat16
                                                  : at::kHalf;
}

// ---- products of patches ------------------------------------------------------------------------

// Not MKL's, which starts a team of threads of its own where patches are multiplied in one.
LinearImplementation product_by(Implementation implementation) {
  return implementation == Implementation::kTiles ? LinearImplementation::kPackedTiles
                                                  : LinearImplementation::kPackedPanels;
}

// Of all patches by the weight, which is [outputs, kernel * channels]; of a group.
backend::Matvec product_of(const ConvolutionCall& call) {
  const backend::ConvolutionGeometry& geometry = call.shape.geometry;
  if (call.spreads) {  // of a line of pixels by a row of the kernel
    const int64_t n = geometry.kernel_width * geometry.outputs;
    return {.element = call.shape.element,
            .m = geometry.width - geometry.kernel_width + 1,
            .n = n,
            .k = geometry.channels,
            .x_stride = geometry.channels,
            .w_stride = geometry.channels,
            .y_stride = n};
  }
  const int64_t groups = call.settings.groups, k = geometry.kernel() * geometry.channels / groups;
  return {.element = call.shape.element,
          .m = geometry.images * geometry.positions(),
          .n = geometry.outputs / groups,
          .k = k,
          .x_stride = k,
          .w_stride = k,
          .y_stride = geometry.outputs};
}

// On tiles: of all outputs by the channels of their sets.
backend::Matvec product_of_sets(const ConvolutionCall& call) {
  const backend::ConvolutionGeometry& geometry = call.shape.geometry;
  backend::Matvec product = product_of(call);
  product.n = geometry.outputs;
  product.k = product.x_stride = product.w_stride = geometry.kernel() * geometry.channels / call.tile_sets;
  return product;
}
bool has_sets(Implementation implementation, const ConvolutionCall& call) {
  return implementation == Implementation::kTiles && call.tile_sets > 0;
}

// Where results go.
struct Destination {
  void* result;
  backend::Limits limits;
  const backend::Follower* follower;
};

FollowedResult convolve_by_patches(Implementation implementation, const ConvolutionCall& call, const at::Tensor& filter,
                                   const at::Tensor& input, const std::optional<at::Tensor>& bias,
                                   const Destination& to) {
  if (implementation == Implementation::kTiles && !call.spreads &&
      backend::fits_tiles(call.shape.geometry, call.shape.element)) {
    return backend::convolve_tiles({.geometry = call.shape.geometry,
                                    .element = call.shape.element,
                                    .input = input.const_data_ptr(),
                                    .groups = call.settings.groups,
                                    .packed = filter.const_data_ptr(),
                                    .bias = bias ? bias->const_data_ptr() : nullptr,
                                    .output = to.result,
                                    .limits = to.limits,
                                    .follower = to.follower});
  }
  backend::Matvec product = product_of(call);
  product.packed = filter.const_data_ptr();
  product.bias = bias ? bias->const_data_ptr() : nullptr;
  product.y = to.result;
  product.limits = to.limits;
  std::atomic<bool> reachable{true};
  const auto give_up = [&](const backend::Gemm&) { reachable = false; };
  const auto multiply = [&](const backend::Matvec& part) {
    multiply_packed(product_by(implementation), part, give_up);
  };
  const backend::ConvolutionGeometry& geometry = call.shape.geometry;
  bool followed = false;
  if (call.spreads) {
    static thread_local backend::Scratch memory;
    if (bias) {
      std::byte* const repeated = memory.get(geometry.kernel_width * static_cast<int64_t>(bias->nbytes()));
      for (int64_t i = 0; i < geometry.kernel_width; ++i) {
        std::memcpy(repeated + i * static_cast<int64_t>(bias->nbytes()), bias->const_data_ptr(), bias->nbytes());
      }
      product.bias = repeated;
    }
    followed = backend::spread_pixels({.images = geometry.images,
                                       .height = geometry.height - geometry.kernel_height + 1,
                                       .width = product.m,
                                       .kernel_height = geometry.kernel_height,
                                       .row_bytes = filter.numel() / geometry.kernel_height},
                                      input.const_data_ptr(), product, multiply, to.follower);
  } else {
    followed = backend::convolve_patches(geometry, input.const_data_ptr(), product, multiply, to.follower);
  }
  if (!reachable) return FollowedResult::kOutOfRange;
  return followed ? FollowedResult::kFollowed : FollowedResult::kMade;
}

// By our own kernels.
FollowedResult convolve_to(const Destination& to, Implementation implementation, const ConvolutionCall& call,
                           const at::Tensor& filter, const at::Tensor& input, const std::optional<at::Tensor>& bias) {
  switch (implementation) {
    case Implementation::kDepthwise:
      return backend::depthwise({.geometry = call.shape.geometry,
                                 .element = call.shape.element,
                                 .input = input.const_data_ptr(),
                                 .taps = filter.const_data_ptr<float>(),
                                 .bias = bias ? bias->const_data_ptr() : nullptr,
                                 .output = to.result,
                                 .limits = to.limits,
                                 .follower = to.follower});
    case Implementation::kDirect:
      return backend::convolve_direct({.geometry = call.shape.geometry,
                                       .groups = call.settings.groups,
                                       .element = call.shape.element,
                                       .input = input.const_data_ptr(),
                                       .input_planes = call.input_planes,
                                       .output_planes = call.output_planes,
                                       .packed = filter.const_data_ptr(),
                                       .bias = bias ? bias->const_data_ptr() : nullptr,
                                       .output = to.result,
                                       .limits = to.limits,
                                       .follower = to.follower});
    case Implementation::kWinograd:
      return backend::convolve_winograd({.geometry = call.shape.geometry,
                                         .groups = call.settings.groups,
                                         .input = input.const_data_ptr<float>(),
                                         .filter = filter.const_data_ptr<float>(),
                                         .bias = bias ? bias->const_data_ptr<float>() : nullptr,
                                         .output = static_cast<float*>(to.result),
                                         .limits = to.limits,
                                         .follower = to.follower});
    case Implementation::kFewOutputs:
      backend::convolve_few_outputs({.geometry = call.shape.geometry,
                                     .input = input.const_data_ptr<float>(),
                                     .filter = filter.const_data_ptr<float>(),
                                     .bias = bias ? bias->const_data_ptr<float>() : nullptr,
                                     .output = static_cast<float*>(to.result),
                                     .output_planes = call.output_planes,
                                     .limits = to.limits});
      return FollowedResult::kMade;
    default:
      return convolve_by_patches(implementation, call, filter, input, bias, to);
  }
}

// The weight [channels, outputs, (kernel_height,) kernel_width] as products by its rows need it.
PackedWeights::Made filter_of_rows(Implementation implementation, const ConvolutionCall& call,
                                   const at::Tensor& weight) {
  const at::Tensor kernel = weight.dim() == 3 ? weight.unsqueeze(2) : weight;
  const at::Tensor rows = kernel.permute({2, 3, 1, 0}).contiguous();
  backend::Matvec product = product_of(call);
  std::vector<at::Tensor> made;
  for (int64_t row = 0; row < rows.size(0); ++row) {
    const at::Tensor of_row = rows[row];
    product.w = of_row.const_data_ptr();
    made.push_back(packed_weight(product_by(implementation), product).packed);
    if (!made.back().defined()) return {{}, 0};
  }
  return {at::cat(made), filter_space(implementation, call)};
}

// The weight [outputs, kernel, channels] as products of the groups need it.
PackedWeights::Made filter_of_groups(const ConvolutionCall& call, const at::Tensor& rows) {
  backend::Matvec product = product_of(call);
  std::vector<at::Tensor> made;
  for (const at::Tensor& group : rows.chunk(call.settings.groups)) {
    product.w = group.const_data_ptr();
    made.push_back(packed_weight(LinearImplementation::kPackedPanels, product).packed);
  }
  return {at::cat(made), filter_space(Implementation::kDirect, call)};
}

// `rows` is the weight [outputs, kernel, channels of a group]. Nothing where the algorithm would
// lose what small taps have.
PackedWeights::Made winograd_filter(const backend::ConvolutionGeometry& geometry, int64_t groups,
                                    const at::Tensor& rows) {
  const int64_t bytes = backend::winograd_filter_bytes(geometry, groups);
  at::Tensor made = at::empty({bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
  const bool in_range =
      backend::make_winograd_filter(geometry, groups, rows.const_data_ptr<float>(), made.mutable_data_ptr<float>());
  return in_range ? PackedWeights::Made{std::move(made), bytes} : PackedWeights::Made{{}, 0};
}

// The weight [outputs, kernel, channels of a group] with zeros for the other channels of its set.
PackedWeights::Made filter_of_sets(const ConvolutionCall& call, const at::Tensor& rows) {
  const backend::ConvolutionGeometry& geometry = call.shape.geometry;
  const int64_t groups = call.settings.groups, together = groups / call.tile_sets;
  const at::Tensor groups_rows = rows.reshape(
      {call.tile_sets, together, geometry.outputs / groups, geometry.kernel(), geometry.channels / groups});
  // The channels of a set are those of its groups, one group behind the other.
  at::Tensor wide = at::zeros(
      {call.tile_sets, together, geometry.outputs / groups, geometry.kernel(), together, geometry.channels / groups},
      rows.options());
  for (int64_t group = 0; group < together; ++group) {
    wide.select(1, group).select(3, group).copy_(groups_rows.select(1, group));
  }
  backend::Matvec product = product_of_sets(call);
  product.w = wide.const_data_ptr();
  return packed_weight(LinearImplementation::kPackedTiles, product);
}

}  // namespace

bool can_convolve_by_filter(Implementation implementation, const ConvolutionCall& call) {
  if (call.is_backward()) return false;
  switch (implementation) {
    case Implementation::kDepthwise:
      return call.ours == Implementation::kDepthwise;
    case Implementation::kPacked:
      return one_dnn().is_there(dtype_of(call.shape.element), call.settings.transposed);
    case Implementation::kPanels:
    case Implementation::kTiles:
      if (has_sets(implementation, call)) return can_multiply_packed(product_by(implementation), product_of_sets(call));
      return call.has_patches && can_multiply_packed(product_by(implementation), product_of(call));
    case Implementation::kDirect:
      return call.has_addresses &&
             backend::fits_direct(call.shape.geometry, call.settings.groups, call.shape.element, call.input_planes);
    case Implementation::kWinograd:
      return call.has_winograd;
    case Implementation::kFewOutputs:
      return call.has_addresses && call.settings.groups == 1 && !call.input_planes &&
             backend::fits_few_outputs(call.shape.geometry, call.shape.element);
    default:
      return false;
  }
}

bool is_finite(const at::Tensor& values) { return at::isfinite(values).all().item<bool>(); }

bool has_packed_convolutions() { return one_dnn().is_there(at::kFloat, false); }

int64_t filter_space(Implementation implementation, const ConvolutionCall& call) {
  const backend::ConvolutionGeometry& geometry = call.shape.geometry;
  if (has_sets(implementation, call)) return packed_space(product_by(implementation), product_of_sets(call));
  if (implementation == Implementation::kWinograd)
    return backend::winograd_filter_bytes(geometry, call.settings.groups);
  if (implementation != Implementation::kPacked && implementation != Implementation::kDepthwise &&
      implementation != Implementation::kFewOutputs) {
    const int64_t parts = call.spreads ? geometry.kernel_height : call.settings.groups;
    return parts * packed_space(product_by(implementation), product_of(call));
  }
  const int64_t of_group = (call.settings.transposed ? geometry.outputs : geometry.channels) / call.settings.groups;
  const int64_t filters = call.settings.transposed ? geometry.channels : geometry.outputs;
  const bool of_floats = implementation == Implementation::kDepthwise;
  const auto element = of_floats ? backend::Element::kFloat32 : call.shape.element;
  return filters * of_group * geometry.kernel() * backend::element_bytes(element);
}

PackedWeights::Made make_filter(Implementation implementation, const ConvolutionCall& call, const at::Tensor& weight,
                                at::IntArrayRef input_sizes) {
  switch (implementation) {
    case Implementation::kPacked: {
      at::Tensor packed = packed_filter(call.settings, weight, input_sizes);
      return {std::move(packed), filter_space(implementation, call)};
    }
    case Implementation::kDepthwise: {
      at::Tensor taps = at::empty({weight.numel()}, at::kFloat);
      const at::Tensor rows = weight.contiguous();
      backend::depthwise_taps(call.shape.geometry, call.shape.element, rows.const_data_ptr(),
                              taps.mutable_data_ptr<float>());
      return {std::move(taps), filter_space(implementation, call)};
    }
    case Implementation::kFewOutputs: {
      at::Tensor rows = weight.movedim(1, -1).contiguous();
      if (rows.is_alias_of(weight)) rows = rows.clone();
      return {std::move(rows), filter_space(implementation, call)};
    }
    case Implementation::kWinograd:  // infinities, too: its results are looked at
      return winograd_filter(call.shape.geometry, call.settings.groups, weight.movedim(1, -1).contiguous());
    default: {
      // What is outside the image is 0 times the weight in such a product, and is left out by
      // others.
      if (!is_finite(weight)) return {{}, 0};
      if (call.spreads) return filter_of_rows(implementation, call, weight);
      const at::Tensor rows = weight.movedim(1, -1).contiguous();
      if (has_sets(implementation, call)) return filter_of_sets(call, rows);
      if (call.settings.groups > 1) return filter_of_groups(call, rows);
      backend::Matvec product = product_of(call);
      product.w = rows.const_data_ptr();
      return packed_weight(product_by(implementation), product);
    }
  }
}

PackedKey filter_key(Implementation implementation, const ConvolutionCall& call, const graph::Invocation& invocation) {
  const graph::Window& weight = window_of(invocation, call.weight);
  const ConvolutionSettings& settings = call.settings;
  PackedKey key{.form = PackedForm::kFilter,
                .element = call.shape.element,
                .address = static_cast<const std::byte*>(invocation.data[call.weight]) +
                           weight.offset * backend::element_bytes(call.shape.element),
                .n = weight.sizes()[0],
                .k = weight.numel / weight.sizes()[0],
                .stride = weight.sizes()[weight.rank - 1],
                .columns = !weight.contiguous};
  auto next = key.settings.begin();
  *next++ = static_cast<int64_t>(implementation);
  // The layout of oneDNN's filter depends on all of the call; the others are of the weight alone,
  // or of its groups.
  const bool of_groups = implementation == Implementation::kDirect || implementation == Implementation::kWinograd ||
                         has_sets(implementation, call);
  if (implementation != Implementation::kPacked) *next++ = of_groups ? settings.groups : 1;
  next = std::ranges::copy(weight.sizes().subspan(2, settings.stride.size() - 1), next).out;
  if (implementation != Implementation::kPacked) return key;
  for (const Numbers3* const list : {&settings.stride, &settings.padding, &settings.dilation}) {
    next = std::ranges::copy(*list, next).out;
  }
  *next++ = settings.groups;
  if (settings.transposed) {
    *next++ = 1;
    std::ranges::copy(settings.output_padding, next);
  }
  return key;
}

at::Tensor convolve_by_filter(Implementation implementation, const ConvolutionCall& call, const at::Tensor& filter,
                              const at::Tensor& input, const std::optional<at::Tensor>& bias, const at::Tensor& output,
                              backend::Follower* follower) {
  if (implementation == Implementation::kPacked) {
    const OpenMpScope openmp;
    const at::Tensor images = call.shape.output_last ? with_channels_last(input) : input;
    const OfferedMemory offer(output.mutable_data_ptr(), call.shape.output_last ? output.nbytes() : 0);
    return convolve_packed(call.settings, images, filter, bias);
  }
  Destination to{.result = output.mutable_data_ptr(), .limits = {}, .follower = follower};
  std::optional<backend::Follower::Ending> ending;
  if (follower != nullptr) ending = follower->ending(entry_type(call.shape.element));
  if (ending) to = {.result = ending->result, .limits = ending->limits, .follower = nullptr};
  const FollowedResult result = convolve_to(to, implementation, call, filter, input, bias);
  if (result == FollowedResult::kOutOfRange) return at::Tensor();
  if (ending) {
    follower->finish_by_limits();
  } else if (result == FollowedResult::kFollowed) {
    follower->finish();
  }
  return output;
}

bool gradient_by_winograd(const ConvolutionCall& call, const at::Tensor& grad_output, const at::Tensor& weight,
                          float* grad_input) {
  const backend::ConvolutionGeometry& g = call.shape.geometry;
  const int64_t groups = call.settings.groups;
  backend::ConvolutionGeometry turned = g;
  std::swap(turned.channels, turned.outputs);
  turned.height = g.out_height();
  turned.width = g.out_width();
  turned.padding_y = 2 * g.dilation_y - g.padding_y;
  turned.padding_x = 2 * g.dilation_x - g.padding_x;
  // [channels, 3, 3, outputs of a group], the points in reverse order.
  const at::Tensor rows = weight.reshape({groups, g.outputs / groups, g.channels / groups, 3, 3})
                              .flip({3, 4})
                              .permute({0, 2, 3, 4, 1})
                              .contiguous();
  const at::Tensor filter = winograd_filter(turned, groups, rows).packed;
  if (!filter.defined()) return false;
  return backend::convolve_winograd({.geometry = turned,
                                     .groups = groups,
                                     .input = grad_output.const_data_ptr<float>(),
                                     .filter = filter.const_data_ptr<float>(),
                                     .output = grad_input}) == FollowedResult::kMade;
}

}  // namespace hetero::ops
