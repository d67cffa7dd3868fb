// 2-D float32 convolutions as matrix products over several images at once, for many channels and
// few pixels.
//
// A library's direct convolution needs the weight in its own layout. With few pixels, reordering
// the weight takes longer than using it. Here the weight [outputs, channels * kernel] is multiplied
// in place. Columns (unfold.h) are made a block of channels at a time, in the second-level cache of
// the thread that multiplies them, and never exist as a whole. Images are processed in groups of
// some thousand positions; small ones are interleaved.
//
//   forward:      output  = weight * columns (+ bias)
//   backward:     weight' = output' * columns^T,   columns' = weight^T * output', folded to input'
//
// Temporary memory is kMostShared floats once and kMostBlock floats twice per thread. It is kept
// from call to call.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include "backend/cpu/convolution/unfold.h"
#include "backend/cpu/kernels/gemm.h"

namespace hetero::backend {

inline constexpr int64_t kMostShared = 1 << 19;
inline constexpr int64_t kMostBlock = 1 << 17;

// False for images so large that the columns of one channel exceed a block. A library computes
// those better.
bool convolution_fits(const ConvolutionGeometry& geometry);

// Writes output. `bias` may be null. REQUIRES: convolution_fits(geometry); no size is 0; output
// does not overlap an input.
void convolution_forward(const ConvolutionGeometry& geometry, const float* input, const float* weight,
                         const float* bias, float* output, Sgemm sgemm);

// Null for gradients that are not needed.
struct ConvolutionGradients {
  float* input = nullptr;
  float* weight = nullptr;
  float* bias = nullptr;
};

// Writes the gradients, of a loss whose gradient by the output is `grad_output`. REQUIRES: as
// convolution_forward.
void convolution_backward(const ConvolutionGeometry& geometry, const float* grad_output, const float* input,
                          const float* weight, const ConvolutionGradients& gradients, Sgemm sgemm);

}  // namespace hetero::backend
