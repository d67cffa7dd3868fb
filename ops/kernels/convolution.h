// The kernels of convolution and convolution_backward.
//
// ATen's kernels are oneDNN's, which reorder the weight into their own layout on each call. With
// many channels and few pixels, that takes longer than the convolution. Two others are measured
// against them at the first call of a shape (convolution_choice.h). A product over all images at
// once reads the weight in place (backend/cpu/kernels/convolution.h). oneDNN's kernel with a packed
// weight is measured once the weight has been used kUsesBeforePacking times unchanged; programs
// with bound addresses do that in advance. A convolution with one pixel of kernel over images with
// their channels last is a product (linear.h).
//
// All are of float32 and neither transposed nor padded with anything but zeros. The product over
// all images takes one or two dimensions of row-major tensors, without groups; the packed weight
// two, with groups, in either layout. The stock kernel runs all others, and every convolution with
// fusion off or config().verify, which compares bits. Results differ from eager's in the last bits:
// sums are kept in float32 and added in another order.
//
// Thread safety: as any kernel; several threads may run convolutions at once.

#pragma once

#include <optional>

#include "graph/ir/op.h"
#include "ops/kernels/convolution_choice.h"

namespace hetero::ops {

// Runs the call by the best implementation. Returns false and does nothing if that is the stock
// kernel.
bool run_convolution(const graph::Invocation& invocation);
bool run_convolution_backward(const graph::Invocation& invocation);

// OpTraits::prepare: measure where nothing is known of the shape.
void prepare_convolution(const graph::Invocation& invocation);
void prepare_convolution_backward(const graph::Invocation& invocation);

// How often each implementation other than the stock kernel has run, and how many shapes were
// measured.
struct ConvolutionCounts {
  int64_t runs[kConvolutionImplementations] = {};
  int64_t measurements = 0;
};
ConvolutionCounts convolution_counts();

// For tests and measurements: computes every convolution by `implementation` that it can compute,
// whatever was measured. nullopt ends that.
void force_convolution_implementation(std::optional<ConvolutionImplementation> implementation);

}  // namespace hetero::ops
