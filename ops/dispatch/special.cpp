// Operators that PyTorch routes to device-specific entry points.
//
// Convolutions arrive as `convolution` (a typed row) or, from code that insists, as
// convolution_overrideable. Attention asks the device which kernel it wants: we answer as the CPU
// would. Fused RNN cells, and histograms of integers, exist on CUDA only, so they are composed
// here.

#include "ops/dispatch/special.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_convolution_ops.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/histc_ops.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pixel_shuffle_ops.h>
#include <ATen/ops/pixel_unshuffle_ops.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "ops/convolution/convolution.h"
#include "ops/dispatch/catch_all.h"
#include "ops/dispatch/typed.h"

namespace hetero::ops {
namespace {

int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool gqa) {
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, gqa);
}

// torch.jit.trace leaves this operator to its default kernel, which calls the operator that traces
// have instead. So the call is written into the trace here.
at::Tensor trace_convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             at::SymIntArrayRef stride, at::SymIntArrayRef padding, at::SymIntArrayRef dilation,
                             bool transposed, at::SymIntArrayRef output_padding, c10::SymInt groups) {
  namespace tracer = torch::jit::tracer;
  const std::shared_ptr<tracer::TracingState> state = tracer::getTracingState();
  torch::jit::Node* const node = state->createNode(c10::Symbol::fromQualString(at::_ops::_convolution::name), 0);
  tracer::recordSourceLocation(node);
  tracer::addInputs(node, "input", input);
  tracer::addInputs(node, "weight", weight);
  tracer::addInputs(node, "bias", bias);
  tracer::addInputs(node, "stride", stride);
  tracer::addInputs(node, "padding", padding);
  tracer::addInputs(node, "dilation", dilation);
  tracer::addInputs(node, "transposed", transposed);
  tracer::addInputs(node, "output_padding", output_padding);
  tracer::addInputs(node, "groups", groups);
  const at::Context& context = at::globalContext();
  tracer::addInputs(node, "benchmark", context.benchmarkCuDNN());
  tracer::addInputs(node, "deterministic", context.deterministicCuDNN() || context.deterministicAlgorithms());
  tracer::addInputs(node, "cudnn_enabled", context.userEnabledCuDNN());
  tracer::addInputs(node, "allow_tf32", context.allowTF32CuDNN(at::Float32Op::CONV));
  state->insertNode(node);
  tracer::setTracingState(nullptr);
  const auto restored = c10::make_scope_exit([&] { tracer::setTracingState(state); });
  at::Tensor result = TypedRecorder<at::_ops::convolution>::call(input, weight, bias, stride, padding, dilation,
                                                                 transposed, output_padding, std::move(groups));
  tracer::setTracingState(state);
  tracer::addOutput(node, result);
  return result;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::SymIntArrayRef stride, at::SymIntArrayRef padding, at::SymIntArrayRef dilation,
                       bool transposed, at::SymIntArrayRef output_padding, c10::SymInt groups) {
  if (torch::jit::tracer::isTracing()) [[unlikely]] {
    return trace_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                             std::move(groups));
  }
  return TypedRecorder<at::_ops::convolution>::call(input, weight, bias, stride, padding, dilation, transposed,
                                                    output_padding, std::move(groups));
}

at::Tensor convolution_overrideable(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, at::SymIntArrayRef stride,
                                    at::SymIntArrayRef padding, at::SymIntArrayRef dilation, bool transposed,
                                    at::SymIntArrayRef output_padding, c10::SymInt groups) {
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                                std::move(groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_overrideable(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, at::SymIntArrayRef stride,
    at::SymIntArrayRef padding, at::SymIntArrayRef dilation, bool transposed, at::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  const c10::SymInt bias_sizes[] = {weight.sym_size(0)};
  return at::convolution_backward_symint(grad, input, weight, at::OptionalSymIntArrayRef(bias_sizes), stride, padding,
                                         dilation, transposed, output_padding, std::move(groups), mask);
}

// The operators that PyTorch keeps for a device's fused attention. Ours is the CPU's, which draws
// no numbers and has no gradient of the bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
attention_overrideable(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const std::optional<at::Tensor>& bias, double dropout, bool causal, bool debug_mask,
                       std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0 && !debug_mask,
                              "hetero: fused attention has no dropout; use scaled_dot_product_attention");
  auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, bias, scale);
  const at::Tensor none = at::empty({0}, query.options().dtype(at::kLong));
  return {output, logsumexp, none, none, query.sym_size(2), key.sym_size(2), none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_overrideable_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> wanted, const at::Tensor& output, const at::Tensor& logsumexp,
    const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt, double, bool causal, const at::Tensor&,
    const at::Tensor&, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!wanted[3],
                              "hetero: fused attention gives no gradient of its bias; use "
                              "scaled_dot_product_attention");
  const auto mask = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, output, logsumexp, 0.0, causal, mask, scale);
  return {grad_query, grad_key, grad_value, at::Tensor()};
}

at::Tensor with_bias(const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

// Gates, or what a workspace keeps, side by side.
std::vector<at::Tensor> parts_of(const at::Tensor& whole, int64_t count) {
  TORCH_CHECK(whole.dim() == 2 && whole.size(1) % count == 0, "Expected a matrix of ", count,
              " parts of equal width, got ", whole.sizes());
  return whole.unsafe_chunk(count, 1);
}

// gates = input, forget, cell, output; the workspace keeps their activations.
std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_lstm_cell(const at::Tensor& input_gates,
                                                               const at::Tensor& hidden_gates, const at::Tensor& cx,
                                                               const std::optional<at::Tensor>& input_bias,
                                                               const std::optional<at::Tensor>& hidden_bias) {
  const auto gates = parts_of(with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias), 4);
  const at::Tensor input = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(),
                   output = gates[3].sigmoid();
  const at::Tensor cy = forget * cx + input * cell;
  return {output * cy.tanh(), cy, at::cat({input, forget, cell, output}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_lstm_cell_backward(const std::optional<at::Tensor>& grad_hy_,
                                                                        const std::optional<at::Tensor>& grad_cy_,
                                                                        const at::Tensor& cx, const at::Tensor& cy,
                                                                        const at::Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy_.has_value() && grad_hy_->defined();
  const bool has_cy = grad_cy_.has_value() && grad_cy_->defined();
  if (!has_hy && !has_cy) return {};
  const at::Tensor grad_hy = has_hy ? *grad_hy_ : at::zeros_like(cx);
  const auto gates = parts_of(workspace, 4);
  const at::Tensor &input = gates[0], &forget = gates[1], &cell = gates[2], &output = gates[3];
  const at::Tensor tanh_cy = cy.tanh();
  at::Tensor grad_c = grad_hy * output * (1 - tanh_cy * tanh_cy);
  if (has_cy) grad_c = grad_c + *grad_cy_;
  const at::Tensor grad_gates = at::cat({grad_c * cell * input * (1 - input), grad_c * cx * forget * (1 - forget),
                                         grad_c * input * (1 - cell * cell), grad_hy * tanh_cy * output * (1 - output)},
                                        1);
  return {grad_gates, grad_c * forget, has_bias ? grad_gates.sum(0) : at::Tensor()};
}

// gates = reset, input (update), new; the workspace keeps reset, input, new, hx and the hidden part
// of the new gate.
std::tuple<at::Tensor, at::Tensor> fused_gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                  const at::Tensor& hx, const std::optional<at::Tensor>& input_bias,
                                                  const std::optional<at::Tensor>& hidden_bias) {
  const auto in = parts_of(with_bias(input_gates, input_bias), 3);
  const auto hidden = parts_of(with_bias(hidden_gates, hidden_bias), 3);
  const at::Tensor reset = (in[0] + hidden[0]).sigmoid();
  const at::Tensor update = (in[1] + hidden[1]).sigmoid();
  const at::Tensor fresh = (in[2] + reset * hidden[2]).tanh();
  const at::Tensor hy = (hx - fresh) * update + fresh;
  return {hy, at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused_gru_cell_backward(
    const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const auto saved = parts_of(workspace, 5);
  const at::Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden_new = saved[4];
  const at::Tensor grad_update = grad_hy * (hx - fresh) * update * (1 - update);
  const at::Tensor grad_new = grad_hy * (1 - update) * (1 - fresh * fresh);
  const at::Tensor grad_reset = grad_new * hidden_new * reset * (1 - reset);
  const at::Tensor grad_in = at::cat({grad_reset, grad_update, grad_new}, 1);
  const at::Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_new * reset}, 1);
  return {grad_in, grad_hidden, grad_hy * update, has_bias ? grad_in.sum(0) : at::Tensor(),
          has_bias ? grad_hidden.sum(0) : at::Tensor()};
}

// What CUDA's kernel counts, whose bins are whole numbers too.
at::Tensor histc_of_integers(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  TORCH_CHECK(bins > 0, "bins must be > 0");
  int64_t least = 0, most = 0;
  AT_DISPATCH_INTEGRAL_TYPES(self.scalar_type(), "histc", [&] {
    least = static_cast<int64_t>(min.to<scalar_t>());
    most = static_cast<int64_t>(max.to<scalar_t>());
  });
  TORCH_CHECK(least <= most, "max must be larger than min");
  if (self.numel() == 0) return at::zeros({bins}, self.options());
  const at::Tensor values = self.to(at::kLong).reshape(-1);
  if (least == most) {
    least = values.min().item<int64_t>();
    most = values.max().item<int64_t>();
  }
  if (least == most) {
    --least;
    ++most;
  }
  // The last bin has its upper end, too; those outside get a bin behind it.
  const at::Tensor bin = at::div((values - least) * bins, most - least, "trunc").clamp_max(bins - 1);
  const at::Tensor counted = at::where((values >= least).logical_and(values <= most), bin, bins);
  const at::Tensor counts = at::zeros({bins + 1}, values.options()).scatter_add_(0, counted, at::ones_like(counted));
  return counts.narrow(0, 0, bins).to(self.scalar_type(), false, true);
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  if (at::isIntegralType(self.scalar_type(), false)) return histc_of_integers(self, bins, min, max);
  return take_usual_way<at::_ops::histc>({self, bins, min, max})[0].toTensor();
}

at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max,
                      at::Tensor& out) {
  if (at::isIntegralType(self.scalar_type(), false)) {
    const at::Tensor counts = histc_of_integers(self, bins, min, max);
    at::native::resize_output(out, counts.sizes());
    return out.copy_(counts);
  }
  take_usual_way<at::_ops::histc_out>({self, bins, min, max, out});
  return out;
}

// Pixel shuffles are copies in another order: these are fused and take any layout. PyTorch's kernel
// takes each element by itself where channels are last. Anything but whole images takes the usual
// way, errors included.
bool is_image(const at::Tensor& self, int64_t factor) {
  const at::ScalarType dtype = self.scalar_type();
  const bool is_moved = (dtype <= at::kBool && dtype != at::kComplexHalf) || dtype == at::kBFloat16;
  return self.dim() == 4 && is_moved && factor > 1 && factor <= self.numel();
}

bool has_channels_last(const at::Tensor& self) {
  return self.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

// A new tensor of what is seen.
at::Tensor copied(const at::Tensor& seen, at::IntArrayRef sizes) {
  return at::_unsafe_view(seen.clone(at::MemoryFormat::Contiguous), sizes);
}

// The result has the argument's layout, as in eager.
at::Tensor pixel_shuffle(const at::Tensor& self, int64_t factor) {
  if (!is_image(self, factor) || factor > self.size(1) || self.size(1) % (factor * factor) != 0) {
    return take_usual_way<at::_ops::pixel_shuffle>({self, factor})[0].toTensor();
  }
  const int64_t images = self.size(0), height = self.size(2), width = self.size(3);
  const int64_t channels = self.size(1) / (factor * factor);
  if (has_channels_last(self)) {
    const at::Tensor seen = self.permute({0, 2, 3, 1}).view({images, height, width, channels, factor, factor});
    return copied(seen.permute({0, 1, 4, 2, 5, 3}), {images, height * factor, width * factor, channels})
        .permute({0, 3, 1, 2});
  }
  const at::Tensor seen = self.view({images, channels, factor, factor, height, width});
  return copied(seen.permute({0, 1, 4, 2, 5, 3}), {images, channels, height * factor, width * factor});
}

at::Tensor pixel_unshuffle(const at::Tensor& self, int64_t factor) {
  if (!is_image(self, factor) || self.size(2) % factor != 0 || self.size(3) % factor != 0) {
    return take_usual_way<at::_ops::pixel_unshuffle>({self, factor})[0].toTensor();
  }
  const int64_t images = self.size(0), channels = self.size(1);
  const int64_t height = self.size(2) / factor, width = self.size(3) / factor;
  if (has_channels_last(self)) {
    const at::Tensor seen = self.permute({0, 2, 3, 1}).view({images, height, factor, width, factor, channels});
    return copied(seen.permute({0, 1, 3, 5, 2, 4}), {images, height, width, channels * factor * factor})
        .permute({0, 3, 1, 2});
  }
  const at::Tensor seen = self.view({images, channels, height, factor, width, factor});
  return copied(seen.permute({0, 1, 3, 5, 2, 4}), {images, channels * factor * factor, height, width});
}

// Made by rewrite_slice.h of two calls.
TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def(
      "convolution_norm(Tensor input, Tensor filter, Tensor? filter_bias, SymInt[] stride, SymInt[] padding, SymInt[] "
      "dilation, bool transposed, SymInt[] output_padding, SymInt groups, Tensor? weight, Tensor? bias, Tensor mean, "
      "Tensor variance, bool training, float momentum, float eps) -> Tensor");
}
TORCH_LIBRARY_IMPL(hetero, CPU, library) { library.impl("convolution_norm", TORCH_FN(convolution_norm)); }
TORCH_LIBRARY_IMPL(hetero, Meta, library) { library.impl("convolution_norm", TORCH_FN(convolution_norm)); }

}  // namespace

void register_special(torch::Library& library) {
  library.impl("_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
  library.impl("pixel_shuffle", TORCH_FN(pixel_shuffle));
  library.impl("pixel_unshuffle", TORCH_FN(pixel_unshuffle));
  library.impl("histc", TORCH_FN(histc));
  library.impl("histc.out", TORCH_FN(histc_out));
  library.impl("convolution", TORCH_FN(convolution));
  library.impl("convolution_overrideable", TORCH_FN(convolution_overrideable));
  library.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward_overrideable));
  library.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention_overrideable));
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(attention_overrideable_backward));
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(fused_lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(fused_lstm_cell_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(fused_gru_cell));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(fused_gru_cell_backward));
}

}  // namespace hetero::ops

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &hetero::ops::fused_sdp_choice)
}  // namespace at::native
