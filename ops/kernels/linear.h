// The kernel of matrix products with a weight: mm, addmm with beta and alpha 1, bmm with one
// matrix.
//
// F.linear becomes `t` and one of these, so the weight [n, k] comes as a window with strides (1,
// k). Such a product has several implementations (linear_choice.h). The fastest depends on shape,
// dtype and machine. The first call of a shape measures those that need only the operands. Once a
// weight has been used kUsesBeforePacking times unchanged, those that pack it are measured too.
// Packing takes memory, at most config().packed_bytes, so it must gain more than 5 %. Programs with
// bound addresses, whose weights do not change, do all that in advance (prepare_linear). A lookup
// takes no lock.
//
// The gradient of a weight is such a product too. Its x is transposed, which all implementations
// take except the one for few rows.
//
// The stock kernel runs unusual and small products, and every product with fusion off or
// config().verify, which compares bits. The others' results differ from eager's in the last bits:
// sums are kept in float32 and rounded once, as eager's are, but added in another order.
//
// The bias of addmm is a tail (OpTraits::has_tail). If an activation or a sum follows, the product
// runs without it, and one fused kernel adds it and computes what follows. That is faster than a
// library's product that adds to existing values, as addmm does.
//
// Thread safety: as any kernel; several threads may run products at once.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include "graph/ir/op.h"
#include "graph/run/preparation.h"
#include "ops/kernels/linear_choice.h"
#include "ops/dispatch/typed.h"

namespace hetero::ops {

enum class LinearKind : uint8_t { kMm, kAddmm, kBmm };

// Runs the product by the best implementation. False, and nothing is done, where that is the stock kernel.
bool run_linear(const graph::Invocation& invocation, LinearKind kind);
// Measures what is not known of the product's shape yet, and packs its weight where that is faster and the weight has a binding: see
// preparation.h.
void prepare_linear(const graph::Invocation& invocation, LinearKind kind);
// Runs a part of addmm by stock kernels.
void run_addmm_part(const graph::Invocation& invocation);
// Products of one x, as projections to Q, K and V are: those that the same one of our implementations computes are one call of it.
void run_linears(const graph::Invocation* calls, size_t count);

template <LinearKind kind, graph::KernelFunction stock>
void linear_kernel(const graph::Invocation& invocation) {
  if (invocation.part != graph::Part::kTail && run_linear(invocation, kind)) return;
  if (invocation.part == graph::Part::kWhole) return stock(invocation);
  run_addmm_part(invocation);
}

template <LinearKind kind>
void prepare_linear_kernel(const graph::Invocation& invocation) {
  if (invocation.part != graph::Part::kTail) prepare_linear(invocation, kind);
}

template <graph::KernelFunction stock>
struct KernelOf<at::_ops::mm, stock> {
  static constexpr graph::KernelFunction kValue = &linear_kernel<LinearKind::kMm, stock>;
  static void complete(graph::OpTraits& traits) {
    traits.run_together = &run_linears;
    graph::set_preparation(kValue, &prepare_linear_kernel<LinearKind::kMm>);
  }
};
template <graph::KernelFunction stock>
struct KernelOf<at::_ops::addmm, stock> {
  static constexpr graph::KernelFunction kValue = &linear_kernel<LinearKind::kAddmm, stock>;
  static void complete(graph::OpTraits& traits) {
    traits.run_together = &run_linears;
    traits.shared_operand = 1;
    graph::set_preparation(kValue, &prepare_linear_kernel<LinearKind::kAddmm>);
  }
};
template <graph::KernelFunction stock>
struct KernelOf<at::_ops::bmm, stock> {
  static constexpr graph::KernelFunction kValue = &linear_kernel<LinearKind::kBmm, stock>;
  static void complete(graph::OpTraits&) { graph::set_preparation(kValue, &prepare_linear_kernel<LinearKind::kBmm>); }
};

inline constexpr int kUsesBeforePacking = 8;

// How often each implementation other than the stock kernel has run, and how many shapes were measured.
struct LinearCounts {
  int64_t runs[kLinearImplementations] = {};
  int64_t measurements = 0;
  int64_t packed_bytes = 0;  // of weights that are packed now
};
LinearCounts linear_counts();

// Every product that `implementation` can compute is computed by it, whatever was measured; nullopt ends that. For tests and measurements.
void force_linear_implementation(std::optional<LinearImplementation> implementation);

}  // namespace hetero::ops
