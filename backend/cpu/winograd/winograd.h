// Convolutions of 3 × 3 points by Winograd's algorithm, F(2 × 2, 3 × 3): four results take 16
// multiplications in place of 36 (Lavin and Gray, arXiv:1509.09308).
//
// An image with its channels last is cut into tiles of 4 × 4 pixels, each two pixels from the next.
// A tile becomes 16 others by sums and differences of its pixels, channel by channel; so does the
// filter, once. The sums over channels are then 16 products of matrices, of tiles by the filter
// (panel_gemm.h), and sums and differences of those are 2 × 2 pixels of the result.
//
//   float* const filter = std::aligned_alloc(64, winograd_filter_bytes(geometry, groups));
//   make_winograd_filter(geometry, groups, weight, filter);  // once
//   convolve_winograd({.geometry = geometry, .input = input, .filter = filter, .output = output});
//
// Sums have fewer terms than a direct convolution's, and smaller errors. But an error is one of the
// tile's largest pixel and the filter's largest tap, also in results that do not meet them. So
// pixels and taps that are much larger than others are looked for, and infinities and NaNs, which
// would spread. Where the image has regions of very different magnitude, errors are small beside
// the larger ones.
//
// Each thread keeps its tiles from call to call: about half a MiB, up to 4 MiB where threads share
// them, and at least 24 tiles.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <cstdint>

#include "backend/cpu/convolution/geometry.h"
#include "backend/cpu/fused/follower.h"
#include "backend/cpu/vector/instruction_set.h"
#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

// In float32.
struct WinogradConvolution {
  ConvolutionGeometry geometry;
  int64_t groups = 1;
  const float* input = nullptr;        // [images, height, width, channels]
  const float* filter = nullptr;       // as make_winograd_filter() has made it
  const float* bias = nullptr;         // [outputs], or null
  float* output = nullptr;             // [images, out_height, out_width, outputs]
  Limits limits = {};                  // of the output
  const Follower* follower = nullptr;  // of the output, or null
};

// Whether the kernel has 3 × 3 points, without strides and without a large dilation, and the
// processor has vectors.
bool fits_winograd(const ConvolutionGeometry& geometry, InstructionSet set = instruction_set());

inline constexpr float kWinogradRange = 256;

// The bytes of a filter: 16/9 of the weight's, in whole panels.
int64_t winograd_filter_bytes(const ConvolutionGeometry& geometry, int64_t groups,
                              InstructionSet set = instruction_set());
// `weight` is [outputs, 3, 3, channels / groups]; `to` is aligned to 64 bytes. False where an
// output has a tap whose largest magnitude, of all channels, is less than a kWinogradRange-th of
// another tap's, and not 0: results that meet only the small one would lose its digits.
[[nodiscard]] bool make_winograd_filter(const ConvolutionGeometry& geometry, int64_t groups, const float* weight,
                                        float* to, InstructionSet set = instruction_set());

// Writes call.output, which does not overlap an input. Out of range: some result is infinite or no
// number, or the largest pixel's magnitude is more than kWinogradRange times that of a quarter of
// the tiles, but for zeros. REQUIRES: fits_winograd().
FollowedResult convolve_winograd(const WinogradConvolution& call, InstructionSet set = instruction_set());

}  // namespace hetero::backend
