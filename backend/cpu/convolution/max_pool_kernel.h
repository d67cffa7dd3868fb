// The loops of max_pool.h, for the files that are compiled for one instruction set each: vectors of
// 16 channels, as the compiler has them.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace hetero::backend {

// One output pixel: the largest of pixels [y, y_end) by
// [x, x_end), by steps.
struct PoolWindow {
  const void* image;
  int64_t y, y_end, y_step;
  int64_t x, x_end, x_step;
  int64_t width, channels;
  void* output;
  int64_t* places;
};
using PoolKernels = std::array<void (*)(const PoolWindow&), 3>;  // by the element
const PoolKernels& max_pool_avx2();
const PoolKernels& max_pool_avx512();

namespace {

constexpr int kLanes = 16;
typedef float PoolFloats __attribute__((vector_size(4 * kLanes)));
typedef int32_t PoolInts __attribute__((vector_size(4 * kLanes)));
typedef uint16_t PoolHalves __attribute__((vector_size(2 * kLanes)));
typedef int64_t PoolPlaces __attribute__((vector_size(8 * kLanes)));

// Numbers as floats, and the bits that they have in memory, in lanes of 32 bits.
struct PoolFloat32 {
  using Stored = float;
  static constexpr int32_t kLeast = static_cast<int32_t>(0xff800000u);  // minus infinity
  static PoolInts load(const Stored* from) {
    PoolInts bits;
    std::memcpy(&bits, from, sizeof(bits));
    return bits;
  }
  static PoolFloats number(PoolInts bits) { return reinterpret_cast<PoolFloats>(bits); }
  static void store(PoolInts bits, Stored* to) { std::memcpy(to, &bits, sizeof(bits)); }
};

struct PoolHalf {
  using Stored = uint16_t;
  static PoolInts load(const Stored* from) {
    PoolHalves halves;
    std::memcpy(&halves, from, sizeof(halves));
    return __builtin_convertvector(halves, PoolInts);
  }
  static void store(PoolInts bits, Stored* to) {
    const PoolHalves halves = __builtin_convertvector(bits, PoolHalves);
    std::memcpy(to, &halves, sizeof(halves));
  }
};

struct PoolBfloat16 : PoolHalf {
  static constexpr int32_t kLeast = 0xff80;
  static PoolFloats number(PoolInts bits) { return reinterpret_cast<PoolFloats>(bits << 16); }
};

struct PoolFloat16 : PoolHalf {
  static constexpr int32_t kLeast = 0xfc00;
  static PoolFloats number(PoolInts bits) {
    const PoolInts sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
    // Infinite values and those that are no number have the largest exponent of floats, too.
    const PoolInts special = rest >= 0x7c00;
    const PoolInts normal = (rest << 13) + ((special & ((255 - 31) << 23)) | (~special & ((127 - 15) << 23)));
    // What has no exponent counts from the smallest one.
    const PoolFloats small = __builtin_convertvector(rest, PoolFloats) * 0x1p-24f;
    const PoolInts is_small = rest < 0x0400;
    const PoolInts made = (is_small & reinterpret_cast<PoolInts>(small)) | (~is_small & normal);
    return reinterpret_cast<PoolFloats>(made | sign);
  }
};

template <typename E>
inline void take_larger(PoolInts bits, int32_t place, PoolInts& best, PoolInts& found) {
  const PoolFloats value = E::number(bits);
  const PoolInts takes = (value > E::number(best)) | (value != value);
  best = (takes & bits) | (~takes & best);
  found = (takes & place) | (~takes & found);
}

// kVectors vectors of channels, from `channel` on.
template <typename E, int kVectors>
inline void pool_channels(const PoolWindow& window, const typename E::Stored* image, int64_t channel,
                          typename E::Stored* output, int64_t* places) {
  PoolInts best[kVectors], found[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    best[v] = PoolInts{} + E::kLeast;
    found[v] = PoolInts{} + static_cast<int32_t>(window.y * window.width + window.x);
  }
  for (int64_t y = window.y; y < window.y_end; y += window.y_step) {
    for (int64_t x = window.x; x < window.x_end; x += window.x_step) {
      const auto place = static_cast<int32_t>(y * window.width + x);
      const typename E::Stored* const from = image + int64_t{place} * window.channels + channel;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        take_larger<E>(E::load(from + v * kLanes), place, best[v], found[v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    E::store(best[v], output + v * kLanes);
    const PoolPlaces wide = __builtin_convertvector(found[v], PoolPlaces);
    std::memcpy(places + v * kLanes, &wide, sizeof(wide));
  }
}

// The last channels, by copies that have a whole vector's room.
template <typename E>
inline void pool_rest(const PoolWindow& window, int64_t channel, int64_t count) {
  using Stored = typename E::Stored;
  const auto* const image = static_cast<const Stored*>(window.image) + channel;
  PoolInts best = PoolInts{} + E::kLeast;
  PoolInts found = PoolInts{} + static_cast<int32_t>(window.y * window.width + window.x);
  for (int64_t y = window.y; y < window.y_end; y += window.y_step) {
    for (int64_t x = window.x; x < window.x_end; x += window.x_step) {
      const auto place = static_cast<int32_t>(y * window.width + x);
      Stored values[kLanes] = {};
      std::memcpy(values, image + int64_t{place} * window.channels, static_cast<size_t>(count) * sizeof(Stored));
      take_larger<E>(E::load(values), place, best, found);
    }
  }
  Stored output[kLanes];
  E::store(best, output);
  const PoolPlaces places = __builtin_convertvector(found, PoolPlaces);
  std::memcpy(static_cast<Stored*>(window.output) + channel, output, static_cast<size_t>(count) * sizeof(Stored));
  std::memcpy(window.places + channel, &places, static_cast<size_t>(count) * sizeof(*window.places));
}

template <typename E>
void pool_window(const PoolWindow& window) {
  using Stored = typename E::Stored;
  const auto* const image = static_cast<const Stored*>(window.image);
  auto* const output = static_cast<Stored*>(window.output);
  int64_t channel = 0;
  for (; channel + 2 * kLanes <= window.channels; channel += 2 * kLanes) {
    pool_channels<E, 2>(window, image, channel, output + channel, window.places + channel);
  }
  if (channel + kLanes <= window.channels) {
    pool_channels<E, 1>(window, image, channel, output + channel, window.places + channel);
    channel += kLanes;
  }
  if (channel < window.channels) pool_rest<E>(window, channel, window.channels - channel);
}

constexpr PoolKernels kPoolKernels = {&pool_window<PoolFloat32>, &pool_window<PoolBfloat16>, &pool_window<PoolFloat16>};

}  // namespace
}  // namespace hetero::backend
