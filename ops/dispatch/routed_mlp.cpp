// hetero::routed_mlp and hetero::routed_quantized_mlp: the experts of a mixture, each computed only
// for the tokens that chose it.
//
//   y[t] = sum over k of weights[t, k] * mlp[experts[t, k]](x[t])
//   mlp[e](x) = (silu(x * gate[e]^T) * (x * up[e]^T)) * down[e]^T
//
// 1. The tokens are sorted by expert; experts that nobody chose are not read.
// 2. For each expert: its tokens' rows are gathered and go through its three products. Few rows
//    take the kernel that reads each weight once (backend/cpu/kernels/matvec.h). Weights in 8 and
//    4 bits (quantized.h) are lists of three tensors for each expert: packed, scales, zeros.
// 3. What it gives is added in float32, the experts in ascending order, and rounded once.
//
// The choice of experts depends on values, so it is an input, and the shapes do not depend on it.
// Tensors of the device are recorded by the catch-all.

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "backend/cpu/kernels/matvec.h"
#include "ops/dispatch/quantized.h"
#include "ops/kernels/own_kernel.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using at::TensorList;

void check_weights(const char* name, TensorList list, size_t count, const Tensor& x, int64_t rows, int64_t columns) {
  TORCH_CHECK(list.size() == count, "routed_mlp: ", name, " has ", list.size(), " experts, and gate has ", count);
  for (const Tensor& weight : list) {
    TORCH_CHECK(weight.dim() == 2 && weight.size(0) == rows && weight.size(1) == columns, "routed_mlp: a weight of ",
                name, " has sizes ", weight.sizes(), ", and [", rows, ", ", columns, "] are needed");
    TORCH_CHECK_TYPE(weight.scalar_type() == x.scalar_type(), "routed_mlp: ", name, " is ", weight.scalar_type(),
                     ", and x is ", x.scalar_type());
  }
}

void check_routes(const Tensor& x, const Tensor& experts, const Tensor& weights) {
  TORCH_CHECK(x.dim() == 2, "routed_mlp: x must have 2 dimensions, not ", x.dim());
  TORCH_CHECK_TYPE(at::isFloatingType(x.scalar_type()), "routed_mlp: x must be of floats, not ", x.scalar_type());
  TORCH_CHECK(experts.dim() == 2 && experts.size(0) == x.size(0), "routed_mlp: experts must have sizes [", x.size(0),
              ", k], not ", experts.sizes());
  TORCH_CHECK_TYPE(experts.scalar_type() == at::kLong, "routed_mlp: experts must be int64, not ",
                   experts.scalar_type());
  TORCH_CHECK(weights.sizes() == experts.sizes(), "routed_mlp: weights must have the sizes of experts, ",
              experts.sizes(), ", not ", weights.sizes());
}

void check_arguments(const Tensor& x, const Tensor& experts, const Tensor& weights, TensorList gate, TensorList up,
                     TensorList down) {
  check_routes(x, experts, weights);
  TORCH_CHECK(!gate.empty(), "routed_mlp: there must be an expert");
  const int64_t width = gate[0].dim() == 2 ? gate[0].size(0) : 0;
  check_weights("gate", gate, gate.size(), x, width, x.size(1));
  check_weights("up", up, gate.size(), x, width, x.size(1));
  check_weights("down", down, gate.size(), x, x.size(1), width);
}

// Which of the chosen pairs (token, k) belong to each expert, in the order of tokens.
std::vector<std::vector<int64_t>> sort_by_expert(const Tensor& experts, size_t count) {
  std::vector<std::vector<int64_t>> pairs(count);
  const Tensor dense = experts.contiguous();
  const auto* const chosen = dense.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < dense.numel(); ++i) {
    TORCH_CHECK_INDEX(chosen[i] >= 0 && chosen[i] < static_cast<int64_t>(count), "routed_mlp: expert ", chosen[i],
                      " is out of range; there are ", count);
    pairs[static_cast<size_t>(chosen[i])].push_back(i);
  }
  return pairs;
}

// y = x * w^T for each weight. Weights of few rows of x are read once, all in one call.
std::vector<Tensor> products(const Tensor& x, std::initializer_list<Tensor> weights) {
  std::vector<Tensor> results;
  const auto element = element_of(static_cast<graph::DType>(x.scalar_type()));
  const bool dense = std::ranges::all_of(weights, [](const Tensor& w) { return w.stride(1) == 1; });
  if (!element.has_value() || x.size(0) > backend::kMaxMatvecRows || !dense) {
    for (const Tensor& weight : weights) results.push_back(at::linear(x, weight));
    return results;
  }
  std::vector<backend::Matvec> calls;
  for (const Tensor& weight : weights) {
    results.push_back(at::empty({x.size(0), weight.size(0)}, x.options()));
    calls.push_back({.element = *element,
                     .m = x.size(0),
                     .n = weight.size(0),
                     .k = x.size(1),
                     .x = x.const_data_ptr(),
                     .x_stride = x.stride(0),
                     .w = weight.const_data_ptr(),
                     .w_stride = weight.stride(0),
                     .y = results.back().mutable_data_ptr(),
                     .y_stride = results.back().stride(0)});
  }
  backend::matvec(calls);
  return results;
}

// halves(e, rows): what gate and up of expert e make of the rows; down(e, rows) likewise.
template <typename Halves, typename Down>
Tensor run_experts(const Tensor& x, const Tensor& experts, const Tensor& weights, size_t count, const Halves& halves,
                   const Down& down) {
  Tensor sum = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  const Tensor shares = weights.reshape({-1, 1}).to(at::kFloat);
  const std::vector<std::vector<int64_t>> pairs = sort_by_expert(experts, count);
  for (size_t e = 0; e < pairs.size(); ++e) {
    if (pairs[e].empty()) continue;
    const auto rows = static_cast<int64_t>(pairs[e].size());
    const Tensor chosen = at::from_blob(const_cast<int64_t*>(pairs[e].data()), {rows}, at::kLong);
    const Tensor tokens = at::div(chosen, experts.size(1), "floor");
    const std::vector<Tensor> both = halves(e, x.index_select(0, tokens));
    const Tensor result = down(e, at::silu(both[0]).mul_(both[1]))[0];
    sum.index_add_(0, tokens, result.to(at::kFloat).mul_(shares.index_select(0, chosen)));
  }
  return sum.to(x.scalar_type());
}

Tensor routed_mlp(const Tensor& x, const Tensor& experts, const Tensor& weights, TensorList gate, TensorList up,
                  TensorList down) {
  check_arguments(x, experts, weights, gate, up, down);
  return run_experts(
      x, experts, weights, gate.size(),
      [&](size_t e, const Tensor& rows) {
        return products(rows, {gate[e], up[e]});
      },
      [&](size_t e, const Tensor& rows) { return products(rows, {down[e]}); });
}

Tensor routed_mlp_meta(const Tensor& x, const Tensor& experts, const Tensor& weights, TensorList gate, TensorList up,
                       TensorList down) {
  check_arguments(x, experts, weights, gate, up, down);
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

// ---- weights in 8 and 4 bits

constexpr size_t kParts = 3;  // packed, scales, zeros

// Weights [n, k] of all experts.
struct PackedList {
  TensorList tensors;
  backend::QuantizedShape shape;

  void check(const char* name, size_t count) const {
    TORCH_CHECK(tensors.size() == kParts * count, "routed_quantized_mlp: ", name, " has ", tensors.size(),
                " tensors; gate has ", kParts * count, ", three for each expert");
    for (size_t e = 0; e < count; ++e) check_packed(shape, of(e));
  }
  PackedWeight of(size_t e) const { return {tensors[kParts * e], tensors[kParts * e + 1], tensors[kParts * e + 2]}; }
};

struct PackedExperts {
  PackedList gate, up, down;

  PackedExperts(const Tensor& x, const Tensor& experts, const Tensor& weights, TensorList gate_list, TensorList up_list,
                TensorList down_list, int64_t bits, int64_t group, int64_t width) {
    check_routes(x, experts, weights);
    gate = {gate_list, packed_shape(bits, width, x.size(1), group)};
    up = {up_list, gate.shape};
    down = {down_list, packed_shape(bits, x.size(1), width, group)};
    TORCH_CHECK(count() > 0, "routed_quantized_mlp: there must be an expert");
    gate.check("gate", count());
    up.check("up", count());
    down.check("down", count());
  }
  size_t count() const { return gate.tensors.size() / kParts; }
};

Tensor routed_quantized_mlp(const Tensor& x, const Tensor& experts, const Tensor& weights, TensorList gate,
                            TensorList up, TensorList down, int64_t bits, int64_t group, int64_t width) {
  const PackedExperts all(x, experts, weights, gate, up, down, bits, group, width);
  return run_experts(
      x, experts, weights, all.count(),
      [&](size_t e, const Tensor& rows) {
        return packed_products(rows, all.gate.shape, {all.gate.of(e), all.up.of(e)});
      },
      [&](size_t e, const Tensor& rows) { return packed_products(rows, all.down.shape, {all.down.of(e)}); });
}

Tensor routed_quantized_mlp_meta(const Tensor& x, const Tensor& experts, const Tensor& weights, TensorList gate,
                                 TensorList up, TensorList down, int64_t bits, int64_t group, int64_t width) {
  const PackedExperts all(x, experts, weights, gate, up, down, bits, group, width);
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def(
      "routed_mlp(Tensor x, Tensor experts, Tensor weights, Tensor[] gate, Tensor[] up, Tensor[] down) -> Tensor");
  library.def(
      "routed_quantized_mlp(Tensor x, Tensor experts, Tensor weights, Tensor[] gate, Tensor[] up, Tensor[] down, "
      "int bits, int group, int width) -> Tensor");
}

TORCH_LIBRARY_IMPL(hetero, CPU, library) {
  library.impl("routed_mlp", TORCH_FN(routed_mlp));
  library.impl("routed_quantized_mlp", TORCH_FN(routed_quantized_mlp));
}
TORCH_LIBRARY_IMPL(hetero, Meta, library) {
  library.impl("routed_mlp", TORCH_FN(routed_mlp_meta));
  library.impl("routed_quantized_mlp", TORCH_FN(routed_quantized_mlp_meta));
}

}  // namespace hetero::ops
