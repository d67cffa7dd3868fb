#include "qwen3/sampling/sweep.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

// Each function once for each level of x86; the loader chooses. Sanitizers run before it can.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define HETERO_FOR_EACH_LEVEL __attribute__((target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define HETERO_FOR_EACH_LEVEL
#endif

namespace hetero::qwen3 {
namespace {

constexpr size_t kLanes = 16;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Cephes' expf for x <= 0: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2].
[[gnu::always_inline]] inline float exp_of(float x) {
  // 1.5 * 2^23: adding it rounds to an integer in the low bits.
  constexpr float kMagic = 12582912.0F;
  const float clamped = x < -87.0F ? -87.0F : x;
  const float shifted = clamped * 1.44269504F + kMagic;
  const float n = shifted - kMagic;
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  float y = 1.9875691500e-4F;
  y = y * r + 1.3981999507e-3F;
  y = y * r + 8.3334519073e-3F;
  y = y * r + 4.1665795894e-2F;
  y = y * r + 1.6666665459e-1F;
  y = y * r + 5.0000001201e-1F;
  y = y * (r * r) + r + 1.0F;
  const uint32_t bits = std::bit_cast<uint32_t>(shifted) << 23;
  const float power = std::bit_cast<float>(bits + 0x3F800000U);
  return x < -87.0F ? 0.0F : y * power;
}

// Sums of a lane each, added in a fixed order.
[[gnu::always_inline]] inline double total_of(const float (&lanes)[kLanes]) {
  double total = 0;
  for (const float lane : lanes) total += static_cast<double>(lane);
  return total;
}

}  // namespace

HETERO_FOR_EACH_LEVEL
Extreme sweep_max(std::span<const float> values, std::span<float> block_max) {
  Extreme extreme{kLowest, false};
  const float* data = values.data();
  int32_t nan = 0;
  for (size_t begin = 0, block = 0; begin < values.size(); begin += kMaxBlock, ++block) {
    const size_t end = std::min(begin + kMaxBlock, values.size());
    float lanes[kLanes];
    int32_t nans[kLanes] = {};
    std::fill_n(lanes, kLanes, kLowest);
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        const float value = data[i + l];
        lanes[l] = lanes[l] < value ? value : lanes[l];
        nans[l] |= value != value ? 1 : 0;
      }
    }
    for (; i < end; ++i) {
      lanes[0] = lanes[0] < data[i] ? data[i] : lanes[0];
      nans[0] |= data[i] != data[i] ? 1 : 0;
    }
    float max = kLowest;
    for (size_t l = 0; l < kLanes; ++l) {
      max = max < lanes[l] ? lanes[l] : max;
      nan |= nans[l];
    }
    block_max[block] = max;
    extreme.max = extreme.max < max ? max : extreme.max;
  }
  extreme.has_nan = nan != 0;
  return extreme;
}

HETERO_FOR_EACH_LEVEL
static void divide(float* data, size_t count, float divisor) {
  for (size_t i = 0; i < count; ++i) data[i] /= divisor;
}

Extreme sweep_divide(std::span<float> values, float divisor, std::span<float> block_max) {
  if (divisor != 1) divide(values.data(), values.size(), divisor);
  return sweep_max(values, block_max);
}

HETERO_FOR_EACH_LEVEL
double sweep_exp(std::span<const float> values, float max, std::span<float> exps, std::span<double> block_sums) {
  const float* data = values.data();
  float* out = exps.data();
  double total = 0;
  for (size_t begin = 0, block = 0; begin < values.size(); begin += kSumBlock, ++block) {
    const size_t end = std::min(begin + kSumBlock, values.size());
    float lanes[kLanes] = {};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        const float value = exp_of(data[i + l] - max);
        out[i + l] = value;
        lanes[l] += value;
      }
    }
    for (; i < end; ++i) {
      out[i] = exp_of(data[i] - max);
      lanes[0] += out[i];
    }
    block_sums[block] = total_of(lanes);
    total += block_sums[block];
  }
  return total;
}

HETERO_FOR_EACH_LEVEL
double sweep_sum(std::span<const float> values, float max) {
  const float* data = values.data();
  double total = 0;
  for (size_t begin = 0; begin < values.size(); begin += kSumBlock) {
    const size_t end = std::min(begin + kSumBlock, values.size());
    float lanes[kLanes] = {};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) lanes[l] += exp_of(data[i + l] - max);
    }
    for (; i < end; ++i) lanes[0] += exp_of(data[i] - max);
    total += total_of(lanes);
  }
  return total;
}

HETERO_FOR_EACH_LEVEL
double sweep_mass(std::span<const float> values, std::span<const float> exps, float least) {
  const float* data = values.data();
  const float* mass = exps.data();
  double total = 0;
  for (size_t begin = 0; begin < values.size(); begin += kSumBlock) {
    const size_t end = std::min(begin + kSumBlock, values.size());
    float lanes[kLanes] = {};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) lanes[l] += data[i + l] >= least ? mass[i + l] : 0.0F;
    }
    for (; i < end; ++i) lanes[0] += data[i] >= least ? mass[i] : 0.0F;
    total += total_of(lanes);
  }
  return total;
}

}  // namespace hetero::qwen3

#undef HETERO_FOR_EACH_LEVEL
