// The loops of max_pool.h, pixel_mean.h, batch_norm.h and backend/cpu/resize/, for the files that
// are compiled for one instruction set each: with the compiler's vectors, as long as that set has
// them. It would take longer ones apart, a number at a time where they are compared.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace hetero::backend {

// One output pixel: the largest of pixels [y, y_end) by [x, x_end), by steps.
struct PoolWindow {
  const void* image;
  int64_t y, y_end, y_step;
  int64_t x, x_end, x_step;
  int64_t width, channels;
  void* output;
  int64_t* places;
};
// The sums over `pixels` of the first `count` channels, at most kSummedChannels, of images with
// `channels`.
inline constexpr int64_t kSummedChannels = 64;
struct PixelSum {
  const void* first;
  int64_t pixels, channels, count;
  float* sums;
};

// `to` = first * of_first + next * of_next.
struct Blend {
  const float* first;
  const float* next;
  float of_first, of_next;
  int64_t count;
  float* to;
};

// Rows of kNormVector * vectors columns, at most kNormColumns, `stride` floats apart. Each column
// has numbers of its own, and results: the mean and the sum of squared distances from it; the sums
// of gradients and of their products with input - mean.
inline constexpr int64_t kNormColumns = 64;
inline constexpr int kNormVector = 16;
struct NormRows {
  int64_t rows, stride, vectors;
  const float* input;
  const float* gradient;
  const float* numbers[4];
  float* output;
  float* results[2];
};

struct ImageKernels {
  // By the element.
  std::array<void (*)(const PoolWindow&), 3> largest;
  std::array<void (*)(const PixelSum&), 3> sum;
  void (*blend)(const Blend&);
  void (*moments)(const NormRows&);
  void (*gradient_sums)(const NormRows&);  // numbers: the mean
  void (*normalize)(const NormRows&);      // numbers: mean, a, b of (input - mean) * a + b
  // numbers: mean, a, b, c of (input - mean) * a + (gradient * b + c)
  void (*norm_gradient)(const NormRows&);
};
const ImageKernels& image_kernels_avx2();
const ImageKernels& image_kernels_avx512();

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float LaneFloats __attribute__((vector_size(4 * kLanes)));
typedef int32_t LaneInts __attribute__((vector_size(4 * kLanes)));
typedef uint16_t LaneHalves __attribute__((vector_size(2 * kLanes)));
typedef int64_t LanePlaces __attribute__((vector_size(8 * kLanes)));

// Numbers as floats, and the bits that they have in memory, in lanes of 32 bits.
struct LanesOfFloat32 {
  using Stored = float;
  static constexpr int32_t kLeast = static_cast<int32_t>(0xff800000u);  // minus infinity
  static LaneInts load(const Stored* from) {
    LaneInts bits;
    std::memcpy(&bits, from, sizeof(bits));
    return bits;
  }
  static LaneFloats number(LaneInts bits) { return reinterpret_cast<LaneFloats>(bits); }
  static void store(LaneInts bits, Stored* to) { std::memcpy(to, &bits, sizeof(bits)); }
};

struct LanesOfHalf {
  using Stored = uint16_t;
  static LaneInts load(const Stored* from) {
    LaneHalves halves;
    std::memcpy(&halves, from, sizeof(halves));
    return __builtin_convertvector(halves, LaneInts);
  }
  static void store(LaneInts bits, Stored* to) {
    const LaneHalves halves = __builtin_convertvector(bits, LaneHalves);
    std::memcpy(to, &halves, sizeof(halves));
  }
};

struct LanesOfBfloat16 : LanesOfHalf {
  static constexpr int32_t kLeast = 0xff80;
  static LaneFloats number(LaneInts bits) { return reinterpret_cast<LaneFloats>(bits << 16); }
};

struct LanesOfFloat16 : LanesOfHalf {
  static constexpr int32_t kLeast = 0xfc00;
  static LaneFloats number(LaneInts bits) {
    const LaneInts sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
    // Infinite values and those that are no number have the largest exponent of floats, too.
    const LaneInts special = rest >= 0x7c00;
    const LaneInts normal = (rest << 13) + ((special & ((255 - 31) << 23)) | (~special & ((127 - 15) << 23)));
    // What has no exponent counts from the smallest one.
    const LaneFloats small = __builtin_convertvector(rest, LaneFloats) * 0x1p-24f;
    const LaneInts is_small = rest < 0x0400;
    const LaneInts made = (is_small & reinterpret_cast<LaneInts>(small)) | (~is_small & normal);
    return reinterpret_cast<LaneFloats>(made | sign);
  }
};

template <typename E>
inline void take_larger(LaneInts bits, int32_t place, LaneInts& best, LaneInts& found) {
  const LaneFloats value = E::number(bits);
  const LaneInts takes = (value > E::number(best)) | (value != value);
  best = takes ? bits : best;
  found = takes ? LaneInts{} + place : found;
}

// kVectors vectors of channels, from `channel` on.
template <typename E, int kVectors>
inline void pool_channels(const PoolWindow& window, const typename E::Stored* image, int64_t channel,
                          typename E::Stored* output, int64_t* places) {
  LaneInts best[kVectors], found[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    best[v] = LaneInts{} + E::kLeast;
    found[v] = LaneInts{} + static_cast<int32_t>(window.y * window.width + window.x);
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
    const LanePlaces wide = __builtin_convertvector(found[v], LanePlaces);
    std::memcpy(places + v * kLanes, &wide, sizeof(wide));
  }
}

// The last channels, by copies that have a whole vector's room.
template <typename E>
inline void pool_rest(const PoolWindow& window, int64_t channel, int64_t count) {
  using Stored = typename E::Stored;
  const auto* const image = static_cast<const Stored*>(window.image) + channel;
  LaneInts best = LaneInts{} + E::kLeast;
  LaneInts found = LaneInts{} + static_cast<int32_t>(window.y * window.width + window.x);
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
  const LanePlaces places = __builtin_convertvector(found, LanePlaces);
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

template <typename E, int kVectors>
inline void sum_vectors(const PixelSum& call, int64_t channel) {
  LaneFloats sums[kVectors] = {};
  const auto* from = static_cast<const typename E::Stored*>(call.first) + channel;
  for (int64_t pixel = 0; pixel < call.pixels; ++pixel, from += call.channels) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[v] += E::number(E::load(from + v * kLanes));
  }
  std::memcpy(call.sums + channel, sums, sizeof(sums));
}

template <typename E>
void sum_pixels(const PixelSum& call) {
  using Stored = typename E::Stored;
  int64_t channel = 0;
  for (; channel + 4 * kLanes <= call.count; channel += 4 * kLanes) sum_vectors<E, 4>(call, channel);
  for (; channel + kLanes <= call.count; channel += kLanes) sum_vectors<E, 1>(call, channel);
  if (channel == call.count) return;
  const auto left = static_cast<size_t>(call.count - channel);
  LaneFloats sums = {};
  const auto* from = static_cast<const Stored*>(call.first) + channel;
  for (int64_t pixel = 0; pixel < call.pixels; ++pixel, from += call.channels) {
    Stored values[kLanes] = {};
    std::memcpy(values, from, left * sizeof(Stored));
    sums += E::number(E::load(values));
  }
  std::memcpy(call.sums + channel, &sums, left * sizeof(float));
}

inline LaneFloats lanes_at(const float* from) {
  LaneFloats lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
inline void put_lanes(const LaneFloats& lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }

// Two vectors of columns at a time: as many as have registers.
template <template <int> typename Loop>
inline void for_columns(const NormRows& call) {
  const int64_t vectors = call.vectors * (kNormVector / kLanes);
  int64_t vector = 0;
  for (; vector + 2 <= vectors; vector += 2) Loop<2>::run(call, vector * kLanes);
  if (vector < vectors) Loop<1>::run(call, vector * kLanes);
}

template <int kVectors>
struct Moments {
  static void run(const NormRows& call, int64_t column) {
    LaneFloats sums[kVectors] = {}, squares[kVectors] = {};
    const float* const first = call.input + column;
    const float* from = first;
    for (int64_t row = 0; row < call.rows; ++row, from += call.stride) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[v] += lanes_at(from + v * kLanes);
    }
    const LaneFloats share = LaneFloats{} + 1.0f / static_cast<float>(call.rows);
    for (int v = 0; v < kVectors; ++v) sums[v] *= share;
    from = first;
    for (int64_t row = 0; row < call.rows; ++row, from += call.stride) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const LaneFloats distance = lanes_at(from + v * kLanes) - sums[v];
        squares[v] += distance * distance;
      }
    }
    std::memcpy(call.results[0] + column, sums, sizeof(sums));
    std::memcpy(call.results[1] + column, squares, sizeof(squares));
  }
};

template <int kVectors>
struct GradientSums {
  static void run(const NormRows& call, int64_t column) {
    LaneFloats means[kVectors], sums[kVectors] = {}, products[kVectors] = {};
    std::memcpy(means, call.numbers[0] + column, sizeof(means));
    const float *from = call.input + column, *gradient = call.gradient + column;
    for (int64_t row = 0; row < call.rows; ++row, from += call.stride, gradient += call.stride) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const LaneFloats one = lanes_at(gradient + v * kLanes);
        sums[v] += one;
        products[v] += one * (lanes_at(from + v * kLanes) - means[v]);
      }
    }
    std::memcpy(call.results[0] + column, sums, sizeof(sums));
    std::memcpy(call.results[1] + column, products, sizeof(products));
  }
};

template <int kVectors>
struct Normalize {
  static void run(const NormRows& call, int64_t column) {
    LaneFloats mean[kVectors], a[kVectors], b[kVectors];
    std::memcpy(mean, call.numbers[0] + column, sizeof(mean));
    std::memcpy(a, call.numbers[1] + column, sizeof(a));
    std::memcpy(b, call.numbers[2] + column, sizeof(b));
    const float* from = call.input + column;
    float* to = call.output + column;
    for (int64_t row = 0; row < call.rows; ++row, from += call.stride, to += call.stride) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        put_lanes((lanes_at(from + v * kLanes) - mean[v]) * a[v] + b[v], to + v * kLanes);
      }
    }
  }
};

template <int kVectors>
struct NormGradient {
  static void run(const NormRows& call, int64_t column) {
    LaneFloats mean[kVectors], a[kVectors], b[kVectors], c[kVectors];
    std::memcpy(mean, call.numbers[0] + column, sizeof(mean));
    std::memcpy(a, call.numbers[1] + column, sizeof(a));
    std::memcpy(b, call.numbers[2] + column, sizeof(b));
    std::memcpy(c, call.numbers[3] + column, sizeof(c));
    const float *from = call.input + column, *gradient = call.gradient + column;
    float* to = call.output + column;
    for (int64_t row = 0; row < call.rows; ++row, from += call.stride, gradient += call.stride, to += call.stride) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const LaneFloats by_gradient = lanes_at(gradient + v * kLanes) * b[v] + c[v];
        put_lanes((lanes_at(from + v * kLanes) - mean[v]) * a[v] + by_gradient, to + v * kLanes);
      }
    }
  }
};

inline void blend(const Blend& call) {
  int64_t i = 0;
  for (; i + kLanes <= call.count; i += kLanes) {
    LaneFloats first, next;
    std::memcpy(&first, call.first + i, sizeof(first));
    std::memcpy(&next, call.next + i, sizeof(next));
    const LaneFloats sum = first * call.of_first + next * call.of_next;
    std::memcpy(call.to + i, &sum, sizeof(sum));
  }
  for (; i < call.count; ++i) call.to[i] = call.first[i] * call.of_first + call.next[i] * call.of_next;
}

constexpr ImageKernels kImageKernels = {
    {&pool_window<LanesOfFloat32>, &pool_window<LanesOfBfloat16>, &pool_window<LanesOfFloat16>},
    {&sum_pixels<LanesOfFloat32>, &sum_pixels<LanesOfBfloat16>, &sum_pixels<LanesOfFloat16>},
    &blend,
    &for_columns<Moments>,
    &for_columns<GradientSums>,
    &for_columns<Normalize>,
    &for_columns<NormGradient>};

}  // namespace
}  // namespace hetero::backend
