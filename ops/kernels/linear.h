// The kernel of matrix products with a weight: mm, addmm with beta and alpha 1, bmm with one
// matrix.
//
// F.linear becomes `t` and one of these, so the weight [n, k] comes as a window with strides (1,
// k). Such a product has several implementations (linear_choice.h). The fastest depends on shape,
// dtype and machine. The first call of a shape measures those that need only the operands. Once a
// weight has been used kUsesBeforePacking times unchanged, those that pack it are measured too.
// Packing takes memory, at most config().packed_bytes, so it must gain more than 5 %, with what
// comes next where that can run on the product's rows. Programs with bound addresses, whose weights
// do not change, do all that in advance (prepare_linear); their small products of few rows are ours
// without measuring. A lookup takes no lock.
//
// The gradient of a weight is such a product too. Its x is transposed, which all implementations
// take except the one for few rows.
//
// Other small products of float32 call BLAS as the stock kernel does, and have its bits without its
// way there. The stock kernel runs unusual products, and every product with fusion off or
// config().verify, which compares bits. The others' results differ from eager's in the last bits:
// sums are kept in float32 and rounded once, as eager's are, but added in another order.
//
// The bias of addmm is a tail (OpTraits::has_tail). If an activation or a sum follows, the product
// runs without it, and one fused kernel adds it and computes what follows. That is faster than a
// library's product that adds to existing values, as addmm does.
//
// Thread safety: as any kernel; several threads may run products at once.

#pragma once

#include "graph/ir/op.h"
#include "ops/kernels/linear_choice.h"
#include "ops/memory/packed_weights.h"

namespace hetero::ops {

enum class LinearKind : uint8_t { kMm, kAddmm, kBmm };

// Runs the product, or its part, by the best implementation. Returns false and does nothing if that
// is the stock kernel.
template <LinearKind kind>
bool run_linear(const graph::Invocation& invocation);
// OpTraits::prepare: measures what is not known of the product's shape yet. Packs its weight if
// that is faster and the weight has a binding.
template <LinearKind kind>
void prepare_linear(const graph::Invocation& invocation);
// Runs a part of addmm by stock kernels.
void run_addmm_part(const graph::Invocation& invocation);
// Products of one x, such as projections to Q, K and V. Those that one of our implementations
// computes become one call of it.
void run_linears(const graph::Invocation* calls, size_t count);

// A convolution with one pixel of kernel, of images with their channels last: a product of
// [pixels, channels] by the weight, [outputs, channels]. Operands, the bias -1 for none. They are
// dense and of one type.
struct PixelProduct {
  int input, weight, bias, output;
  backend::Element element = backend::Element::kFloat32;
  int64_t pixels, channels, outputs;
};
// Runs it by the best implementation, the stock kernel of products included. Returns false and does
// nothing if there is no memory for the output.
bool run_pixel_product(const graph::Invocation& invocation, const PixelProduct& pixels);
// As prepare_linear().
void prepare_pixel_product(const graph::Invocation& invocation, const PixelProduct& pixels);

// How often each implementation other than the stock kernel has run, and how many shapes were
// measured.
struct LinearCounts {
  int64_t runs[kLinearImplementations] = {};
  int64_t stock_calls = 0;  // of BLAS, in place of the stock kernel
  int64_t measurements = 0;
  int64_t packed_bytes = 0;  // of all weights that are packed now
};
LinearCounts linear_counts();

// For tests and measurements: computes every product by `implementation` that it can compute,
// whatever was measured. nullopt ends that.
void force_linear_implementation(std::optional<LinearImplementation> implementation);

}  // namespace hetero::ops
