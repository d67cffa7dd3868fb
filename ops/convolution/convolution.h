// The kernels of convolution and convolution_backward.
//
// ATen's kernels are oneDNN's, which reorder the weight into their own layout on each call. With
// many channels and few pixels, that takes longer than the convolution. Others are measured against
// them at the first call of a shape (choice.h). A product over all images at once reads the weight
// in place (backend/cpu/convolution/convolution.h). A depthwise convolution has loops of our own.
// Once the weight has been used kUsesBeforePacking times unchanged, those are measured that keep it
// in a layout of theirs (filter.h): oneDNN's kernel, products of patches by one of the packed
// weights of products, Winograd's, and dot products for few outputs. Programs with bound addresses
// do that in advance. A convolution with one pixel of kernel over images with their channels last
// is a product (linear.h).
//
// All pad with nothing but zeros. The product over all images takes one or two dimensions of
// row-major tensors, without groups, in float32. Gradients by pixels are those of depthwise and
// pointwise convolutions with their channels last, in float32. The depthwise loops and products of
// patches take forward ones with their channels last, in 16 bits as well; Winograd's those of 3 × 3
// points in float32, and gradients of their inputs; oneDNN's kernel one to three dimensions, with
// groups, in either layout, and one or two transposed, in 16 bits as well.
// The stock kernel runs all others, and every convolution with fusion off or config().verify, which
// compares bits. Results differ from eager's in the last bits: sums are kept in float32 and added
// in another order.
//
// Thread safety: as any kernel; several threads may run convolutions at once.

#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "graph/ir/op.h"
#include "ops/convolution/choice.h"

namespace hetero::ops {

// Runs the call by the best implementation. Returns false and does nothing if that is the stock
// kernel.
bool run_convolution(const graph::Invocation& invocation);
bool run_convolution_backward(const graph::Invocation& invocation);
// hetero::convolution_norm, a convolution and the batch norm behind it, which is folded into a
// filter and a bias, in float32: values that are derived of six tensors, and made anew when one of
// them changes. Where they cannot be kept, convolution_norm() runs, its CPU kernel: the arguments
// of aten::convolution, and those of aten::native_batch_norm in inference.
bool run_convolution_norm(const graph::Invocation& invocation);
at::Tensor convolution_norm(const at::Tensor& input, const at::Tensor& filter,
                            const std::optional<at::Tensor>& filter_bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean, const at::Tensor& variance,
                            bool training, double momentum, double epsilon);
// A batch norm in inference: y = x * scale + shift for each channel. An undefined weight or bias is
// none.
struct AffineNorm {
  at::Tensor scale, shift;
};
AffineNorm affine_norm(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                       const at::Tensor& variance, double epsilon);
// Whether convolutions with norms may have packed filters at all, as things are configured.
bool norms_may_be_folded();

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
