#include "ops/dispatch/encoder_layer.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_native_multi_head_attention_ops.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "ops/dispatch/catch_all.h"
#include "ops/settings/config.h"

namespace hetero::ops {
namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;

// What a mask hides of scores [batch, heads, length, length], as it is broadcast to them. Undefined
// for what PyTorch refuses.
at::Tensor hidden_by(const at::Tensor& mask, std::optional<int64_t> kind, int64_t batch, int64_t heads,
                     int64_t length) {
  if (kind == 0 && mask.sizes() == at::IntArrayRef{length, length}) return mask.to(at::kBool);
  if (kind == 1 && mask.sizes() == at::IntArrayRef{batch, length}) {
    return mask.to(at::kBool).unsqueeze(1).unsqueeze(1);
  }
  if (kind == 2 && mask.sizes() == at::IntArrayRef{batch, heads, length, length}) return mask.to(at::kBool);
  return {};
}

// Whether a tensor [batch, length, size] attends to itself, by projections of [3 * size, size] and
// [size, size].
bool is_self_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t size,
                       int64_t heads, const at::Tensor& inner, const at::Tensor& inner_bias, const at::Tensor& outer,
                       const at::Tensor& outer_bias) {
  return key.is_same(query) && value.is_same(query) && query.dim() == 3 && query.numel() > 0 && query.size(2) == size &&
         query.is_floating_point() && heads > 0 && size % heads == 0 &&
         inner.sizes() == at::IntArrayRef{3 * size, size} && inner_bias.sizes() == at::IntArrayRef{3 * size} &&
         outer.sizes() == at::IntArrayRef{size, size} && outer_bias.sizes() == at::IntArrayRef{size};
}

Pair multi_head_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t size,
                          int64_t heads, const at::Tensor& inner, const at::Tensor& inner_bias, const at::Tensor& outer,
                          const at::Tensor& outer_bias, const std::optional<at::Tensor>& mask, bool wants_weights,
                          bool averages_weights, std::optional<int64_t> mask_kind) {
  const bool composes =
      last_bits_may_differ() && is_self_attention(query, key, value, size, heads, inner, inner_bias, outer, outer_bias);
  const bool has_mask = mask && mask->defined();
  const at::Tensor hidden =
      composes && has_mask ? hidden_by(*mask, mask_kind, query.size(0), heads, query.size(1)) : at::Tensor();
  if (!composes || has_mask != hidden.defined()) {
    const torch::jit::Stack made = take_usual_way<at::_ops::_native_multi_head_attention>(
        {query, key, value, size, heads, inner, inner_bias, outer, outer_bias, mask, wants_weights, averages_weights,
         mask_kind});
    return {made[0].toTensor(), made[1].toTensor()};
  }
  const int64_t batch = query.size(0), length = query.size(1), width = size / heads;
  const std::vector<at::Tensor> parts =
      at::linear(query, inner, inner_bias).view({batch, length, 3, heads, width}).permute({2, 0, 3, 1, 4}).unbind();
  at::Tensor heads_of, weights;
  if (has_mask || wants_weights) {
    at::Tensor scores = at::matmul(parts[0] * (1 / std::sqrt(static_cast<double>(width))), parts[1].transpose(2, 3));
    if (has_mask) scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    weights = scores.softmax(-1);
    heads_of = at::matmul(weights, parts[2]);
  } else {
    heads_of = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
  }
  const at::Tensor joined = heads_of.transpose(1, 2).reshape({batch, length, size});
  if (!wants_weights) {
    weights = at::Tensor();
  } else if (averages_weights) {
    weights = weights.mean(1);
  }
  return {at::linear(joined, outer, outer_bias), weights};
}

at::Tensor encoder_layer(const at::Tensor& source, int64_t size, int64_t heads, const at::Tensor& inner,
                         const at::Tensor& inner_bias, const at::Tensor& outer, const at::Tensor& outer_bias,
                         bool has_gelu, bool norms_first, double epsilon, const at::Tensor& first_weight,
                         const at::Tensor& first_bias, const at::Tensor& second_weight, const at::Tensor& second_bias,
                         const at::Tensor& wide, const at::Tensor& wide_bias, const at::Tensor& narrow,
                         const at::Tensor& narrow_bias, const std::optional<at::Tensor>& mask,
                         std::optional<int64_t> mask_kind) {
  // Under autocast, PyTorch's code would call kernels of the CPU with two dtypes.
  const bool composes = last_bits_may_differ() || at::autocast::is_autocast_enabled(at::kPrivateUse1);
  if (!composes || source.dim() != 3 || source.numel() == 0) {
    return at::native::transformer_encoder_layer_forward(
        source, size, heads, inner, inner_bias, outer, outer_bias, has_gelu, norms_first, epsilon, first_weight,
        first_bias, second_weight, second_bias, wide, wide_bias, narrow, narrow_bias, mask, mask_kind);
  }
  const auto norm = [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
    return at::layer_norm(hidden, {size}, weight, bias, epsilon);
  };
  // As PyTorch's sums in place do, a sum keeps the dtype of its first number, also under autocast.
  const auto sum = [](const at::Tensor& one, const at::Tensor& other) { return (one + other).to(one.scalar_type()); };
  at::Tensor hidden = norms_first ? norm(source, first_weight, first_bias) : source;
  hidden = sum(std::get<0>(at::_native_multi_head_attention(hidden, hidden, hidden, size, heads, inner, inner_bias,
                                                            outer, outer_bias, mask, false, true, mask_kind)),
               source);
  if (!norms_first) hidden = norm(hidden, first_weight, first_bias);
  const at::Tensor wider = at::linear(norms_first ? norm(hidden, second_weight, second_bias) : hidden, wide, wide_bias);
  hidden = sum(at::linear(has_gelu ? at::gelu(wider) : at::relu(wider), narrow, narrow_bias), hidden);
  return norms_first ? hidden : norm(hidden, second_weight, second_bias);
}

// PyTorch has none: torch.compile asks for it where sizes are symbols.
at::Tensor encoder_layer_meta(const at::Tensor& source, int64_t, int64_t, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&, const at::Tensor&, bool, bool, double, const at::Tensor&,
                              const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                              std::optional<int64_t>) {
  return at::empty_like(source, at::MemoryFormat::Contiguous);
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_transformer_encoder_layer_fwd", TORCH_FN(encoder_layer_meta));
}

}  // namespace

void register_encoder_layer(torch::Library& library) {
  library.impl("_transformer_encoder_layer_fwd", TORCH_FN(encoder_layer));
  library.impl("_native_multi_head_attention", TORCH_FN(multi_head_attention));
}

}  // namespace hetero::ops
