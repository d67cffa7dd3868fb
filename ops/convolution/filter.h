// The implementations of a convolution that keep a filter in a layout of their own: oneDNN's, the
// depthwise loops, products of patches, Winograd's, and dot products.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "backend/cpu/fused/follower.h"
#include "ops/convolution/call.h"
#include "ops/memory/packed_weights.h"

namespace hetero::ops {

// Those of ConvolutionImplementation.
inline constexpr ConvolutionImplementation kFilterImplementations[] = {
    ConvolutionImplementation::kDepthwise, ConvolutionImplementation::kPacked, ConvolutionImplementation::kPanels,
    ConvolutionImplementation::kTiles,     ConvolutionImplementation::kDirect, ConvolutionImplementation::kWinograd,
    ConvolutionImplementation::kFewOutputs};

// Whether the implementation keeps a filter and can compute the call, as things are configured.
bool can_convolve_by_filter(ConvolutionImplementation implementation, const ConvolutionCall& call);
// Whether oneDNN's can at all, for float32.
bool has_packed_convolutions();

// Whether no value is infinite or no number.
bool is_finite(const at::Tensor& values);

// The weight's filter, and the most memory that it takes. Its values may be others than those of
// the call's weight; the first `input_sizes` are those of the images. Undefined where it has values
// that the implementation cannot have.
int64_t filter_space(ConvolutionImplementation implementation, const ConvolutionCall& call);
PackedWeights::Made make_filter(ConvolutionImplementation implementation, const ConvolutionCall& call,
                                const at::Tensor& weight, at::IntArrayRef input_sizes);
// What tells it from the weight's other packed forms.
PackedKey filter_key(ConvolutionImplementation implementation, const ConvolutionCall& call,
                     const graph::Invocation& invocation);

// The result, of the layout of `output`, in which it is made where that is possible. Undefined
// where the images have values that the implementation cannot have. The follower, if any, may be
// finished.
at::Tensor convolve_by_filter(ConvolutionImplementation implementation, const ConvolutionCall& call,
                              const at::Tensor& filter, const at::Tensor& input, const std::optional<at::Tensor>& bias,
                              const at::Tensor& output, backend::Follower* follower = nullptr);

// The gradient of the input as a convolution of the output's, by Winograd's algorithm. False where
// that has values that this cannot have; `grad_input` is anything then. REQUIRES:
// call.has_winograd; both have their channels last.
bool gradient_by_winograd(const ConvolutionCall& call, const at::Tensor& grad_output, const at::Tensor& weight,
                          float* grad_input);

}  // namespace hetero::ops
