// 2-D convolutions in float32 as matrix products over several images at once, for many channels and
// few pixels.
//
// A library's direct convolution wants the weight in a layout of its own, and reordering it takes
// longer than using it where there are few pixels. Here the weight [outputs, channels * kernel] is
// multiplied as it lies. Columns (unfold.h) are made a block of channels at a time, in the
// second-level cache of the thread that multiplies them, and never exist as a whole. Images are
// taken in groups of some thousand positions; small ones are interleaved.
//
//   forward:      output  = weight * columns (+ bias)
//   backward:     weight' = output' * columns^T,   columns' = weight^T * output', folded to input'
//
// Beside the results, memory is taken for kMostShared floats once and kMostBlock floats twice per
// thread; it is kept from call to call.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include "backend/cpu/kernels/gemm.h"
#include "backend/cpu/kernels/unfold.h"

namespace hetero::backend {

inline constexpr int64_t kMostShared = 1 << 19;
inline constexpr int64_t kMostBlock = 1 << 17;

// False for images so large that the columns of one channel exceed a block. Those are best left to
// a library.
bool convolution_fits(const ConvolutionGeometry& geometry);

// Writes output. `bias` is null for none. REQUIRES: convolution_fits(geometry); no size is 0;
// output overlaps nothing that is read.
void convolution_forward(const ConvolutionGeometry& geometry, const float* input, const float* weight,
                         const float* bias, float* output, Sgemm sgemm);

// Each is null where it is not wanted.
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
