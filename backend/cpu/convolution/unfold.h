// The layouts between images and the matrices that a convolution multiplies.
//
// A 2-D convolution is a product of its weight, [outputs, channels * kernel], with the matrix of
// columns, [channels * kernel, positions]. That matrix has a row for each channel and each point of
// the kernel. For each position of the output, the row has the pixel that this point meets there,
// or 0 outside the image. `unfold` makes such rows of one channel's plane. `fold` is its transpose
// and adds rows to a plane, for the gradient.
//
// Small images are shorter than a vector, so several may be *interleaved*: the same pixel of all of
// them is side by side, `lanes` floats, and a position of the output is `lanes` columns. With lanes
// = 1 a plane is one image's, as it is in a tensor.
//
// Thread safety: pure functions, on the calling thread.

#pragma once

#include <cstdint>

#include "backend/cpu/convolution/geometry.h"

namespace hetero::backend {

// kernel() rows of positions() * lanes floats, `row_stride` floats apart, of a plane [height,
// width, lanes].
void unfold(const ConvolutionGeometry& geometry, const float* plane, int64_t lanes, float* rows, int64_t row_stride);

// The transpose: each pixel of the plane becomes the sum of all columns that `unfold` fills with
// it. Entries of `rows` for points outside the image may become 0.
void fold(const ConvolutionGeometry& geometry, float* rows, int64_t row_stride, int64_t lanes, float* plane);

// interleaved[i * lanes + lane] = planar[lane * stride + i] for 0 <= i < count, and the reverse.
void interleave(const float* planar, int64_t stride, int64_t lanes, int64_t count, float* interleaved);
void deinterleave(const float* interleaved, int64_t lanes, int64_t count, float* planar, int64_t stride);

}  // namespace hetero::backend
