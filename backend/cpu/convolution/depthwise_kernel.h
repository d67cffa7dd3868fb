// The kernel of depthwise.h, a template over a vector of floats (vector/).
//
// Each of depthwise.cpp, depthwise_avx2.cpp and depthwise_avx512.cpp includes it, compiled for
// other instructions. Everything is in an unnamed namespace, so that the linker does not take one
// file's functions for another's.

#pragma once

#include <array>
#include <cstdint>
#include <utility>

namespace hetero::backend {

inline constexpr int kDepthwiseBlock = 6;

// Neighbouring outputs of a row, of all channels. Distances count floats.
struct DepthwiseBlock {
  const float* input;  // that the first tap meets, of the first output
  int64_t input_row;   // from what a tap meets to what the one below it meets
  int64_t input_tap;   // and the one beside it
  int64_t step;        // and the same tap of the next output
  const float* taps;   // the first one that meets the image
  int64_t taps_row;
  int rows, columns;  // of taps that meet the image
  const float* bias;  // or null
  float* output;
  int64_t channels;
};

// By the number of outputs, less one.
using DepthwiseKernels = std::array<void (*)(const DepthwiseBlock&), kDepthwiseBlock>;
const DepthwiseKernels& depthwise_avx2();
const DepthwiseKernels& depthwise_avx512();

namespace {

// kVectors vectors of channels, or the first `channels` of one.
template <typename Vector, int kOutputs, int kVectors, bool whole>
inline __attribute__((always_inline)) void depthwise_vectors(const DepthwiseBlock& block, int64_t channel,
                                                             int channels) {
  const auto load = [&](const float* p) { return whole ? Vector::load(p) : Vector::load_first(p, channels); };
  Vector sums[kOutputs][kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Vector bias = block.bias == nullptr ? Vector::zero() : load(block.bias + channel + v * Vector::kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kOutputs; ++i) sums[i][v] = bias;
  }
  const int64_t step = block.step, input_tap = block.input_tap, all = block.channels;
  const int columns = block.columns;
  const float* taps = block.taps + channel;
  const float* input = block.input + channel;
  for (int y = block.rows; y > 0; --y, taps += block.taps_row, input += block.input_row) {
    const float* tap = taps;
    const float* met[kOutputs];
#pragma GCC unroll 8
    for (int i = 0; i < kOutputs; ++i) met[i] = input + i * step;
    int64_t at = 0;
    for (int x = columns; x > 0; --x, tap += all, at += input_tap) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vector weight = load(tap + v * Vector::kWidth);
#pragma GCC unroll 8
        for (int i = 0; i < kOutputs; ++i) {
          sums[i][v] = Vector::fma(load(met[i] + at + v * Vector::kWidth), weight, sums[i][v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kOutputs; ++i) {
    float* const to = block.output + i * all + channel;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (whole) {
        sums[i][v].store(to + v * Vector::kWidth);
      } else {
        sums[i][v].store_first(to, channels);
      }
    }
  }
}

template <typename Vector, int kOutputs>
void depthwise_block(const DepthwiseBlock& block) {
  constexpr int kVectors = Vector::kRegisters >= 32 ? 4 : 2;
  constexpr int64_t kWidth = Vector::kWidth;
  int64_t channel = 0;
  for (; channel + kVectors * kWidth <= block.channels; channel += kVectors * kWidth) {
    depthwise_vectors<Vector, kOutputs, kVectors, true>(block, channel, 0);
  }
  for (; channel + kWidth <= block.channels; channel += kWidth) {
    depthwise_vectors<Vector, kOutputs, 1, true>(block, channel, 0);
  }
  if (channel < block.channels) {
    depthwise_vectors<Vector, kOutputs, 1, false>(block, channel, static_cast<int>(block.channels - channel));
  }
}

template <typename Vector>
constexpr DepthwiseKernels make_depthwise_kernels() {
  return []<int... i>(std::integer_sequence<int, i...>) { return DepthwiseKernels{&depthwise_block<Vector, i + 1>...}; }
  (std::make_integer_sequence<int, kDepthwiseBlock>());
}

}  // namespace
}  // namespace hetero::backend
