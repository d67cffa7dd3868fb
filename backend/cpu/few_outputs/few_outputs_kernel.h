// The dot products of few_outputs.h: templates over a vector of floats, compiled once per
// instruction set.
//
// As in panel_kernel.h, everything here is a template over a type of the including file's unnamed
// namespace, so the linker takes no function in place of one for every processor.
//
// Thread safety: pure functions.

#pragma once

#include <algorithm>
#include <cstdint>

namespace hetero::backend {

inline constexpr int kMostFewOutputs = 4;

// Output pixels of a row, which have the same taps. Distances are in floats.
struct DotRow {
  const float* pixels = nullptr;  // under the first tap of the first output pixel
  int64_t step = 0;               // from an output pixel's to the next one's
  int64_t taps_down = 0;
  int64_t down = 0;  // from a tap to the next below
  int64_t taps_across = 0;
  int64_t across = 0;
  int64_t channels = 0;  // whole vectors

  const float* filter = nullptr;  // of the first tap and output; taps across are together
  int64_t filter_down = 0;
  int64_t filter_output = 0;

  int64_t count = 0;      // output pixels
  float* sums = nullptr;  // [count, outputs]
};

struct DotKernels {
  void (*of_outputs[kMostFewOutputs])(const DotRow& row);  // for 1, 2, ... outputs
};

const DotKernels& dot_kernels_avx2();
const DotKernels& dot_kernels_avx512();

// kPixels pixels, each with kOutputs sums; each vector of a pixel and of the filter is loaded once.
template <typename V, int kOutputs, int kPixels>
[[gnu::always_inline]] inline void dot_pixels(const DotRow& row, const float* pixels, float* sums) {
  V sum[kPixels][kOutputs];
  for (auto& of_pixel : sum) {
    for (V& one : of_pixel) one = V::zero();
  }
  // Taps whose pixels are together are one with more channels.
  const bool together = row.across == row.channels;
  const int64_t taps = together ? 1 : row.taps_across;
  const int64_t length = together ? row.taps_across * row.channels : row.channels;
  for (int64_t y = 0; y < row.taps_down; ++y) {
    for (int64_t x = 0; x < taps; ++x) {
      const float* const from = pixels + y * row.down + x * row.across;
      const float* const filter = row.filter + y * row.filter_down + x * row.channels;
      for (int64_t c = 0; c < length; c += V::kWidth) {
        V weights[kOutputs];
#pragma GCC unroll 4
        for (int o = 0; o < kOutputs; ++o) weights[o] = V::load(filter + o * row.filter_output + c);
#pragma GCC unroll 8
        for (int p = 0; p < kPixels; ++p) {
          const V pixel = V::load(from + p * row.step + c);
#pragma GCC unroll 4
          for (int o = 0; o < kOutputs; ++o) sum[p][o] = V::fma(pixel, weights[o], sum[p][o]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) sums[p * kOutputs + o] = sum[p][o].sum();
  }
}

template <typename V, int kOutputs>
void dot_row(const DotRow& row) {
  // Sums, weights and a pixel share the registers.
  constexpr int kPixels = std::min(8, (V::kRegisters - kOutputs - 1) / kOutputs);
  int64_t x = 0;
  for (; x + kPixels <= row.count; x += kPixels) {
    dot_pixels<V, kOutputs, kPixels>(row, row.pixels + x * row.step, row.sums + x * kOutputs);
  }
  for (; x < row.count; ++x) dot_pixels<V, kOutputs, 1>(row, row.pixels + x * row.step, row.sums + x * kOutputs);
}

template <typename V>
constexpr DotKernels make_dot_kernels() {
  return {{&dot_row<V, 1>, &dot_row<V, 2>, &dot_row<V, 3>, &dot_row<V, 4>}};
}

}  // namespace hetero::backend
