// Passes over the scores of a whole vocabulary, in vectors of what the processor has.
//
// All processors give the same bits: sums are taken in 16 lanes everywhere, and products are never
// fused with sums.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <span>

namespace hetero::qwen3 {

// Elements for each entry of `block_max` and of `block_sums`.
inline constexpr size_t kMaxBlock = 64;
inline constexpr size_t kSumBlock = 1024;

constexpr size_t blocks_of(size_t count, size_t block) { return (count + block - 1) / block; }

struct Extreme {
  float max = 0;
  bool has_nan = false;
};

// The largest of `values`, also of each block. With a NaN among them, the maxima mean nothing.
Extreme sweep_max(std::span<const float> values, std::span<float> block_max);

// Divides `values` in place, then as sweep_max().
Extreme sweep_divide(std::span<float> values, float divisor, std::span<float> block_max);

// exp(value - max) of each value and, per block, their sums; returns the sum of all. Within 2 ulp;
// exp(x) for x < -87 is 0. REQUIRES: no value is NaN or above `max`, which is finite.
double sweep_exp(std::span<const float> values, float max, std::span<float> exps, std::span<double> block_sums);

// The sum of exp(value - max), as sweep_exp() without its outputs.
double sweep_sum(std::span<const float> values, float max);

// The sum of the `exps` of those values that are at least `least`.
double sweep_mass(std::span<const float> values, std::span<const float> exps, float least);

}  // namespace hetero::qwen3
