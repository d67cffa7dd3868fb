// The sums and differences of winograd.h: templates over a vector of floats, compiled once per
// instruction set.
//
// As in panel_kernel.h, everything here is a template over a type of the including file's unnamed
// namespace, so the linker takes no function in place of one for every processor.
//
// Thread safety: pure functions.

#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

inline constexpr int64_t kWinogradPoints = 16;  // of a tile, by rows
inline constexpr int64_t kWinogradPixels = 4;   // that a tile makes

// Tiles that become 16 matrices [tiles, channels].
struct WinogradTiles {
  const float* const* pixels;  // per tile its 4 × 4
  int64_t tiles = 0;
  int64_t channels = 0;
  float* to = nullptr;
  int64_t row = 0;    // floats from tile to tile, at least whole vectors of channels
  int64_t plane = 0;  // from matrix to matrix
  // Per tile the largest magnitude of its pixels; the inner 2 × 2 of each are all there are where
  // tiles begin one pixel outside the image.
  float* largest = nullptr;
  bool inner_only = false;
};

// 16 matrices [tiles, outputs] that become pixels.
struct WinogradSums {
  const float* from = nullptr;
  int64_t row = 0;
  int64_t plane = 0;
  int64_t tiles = 0;
  int64_t outputs = 0;
  const float* bias = nullptr;     // or null
  float* const* pixels = nullptr;  // per tile its 2 × 2
  const Limits* limits = nullptr;  // of them, or null
};

// The 3 × 3 taps of an output, `channels` floats apart, that become a row of 16 matrices.
struct WinogradTaps {
  const float* taps = nullptr;
  int64_t channels = 0;
  float* to = nullptr;
  int64_t plane = 0;
  float* largest = nullptr;  // the largest magnitude of each tap
};

struct WinogradKernels {
  void (*turn)(const WinogradTaps& taps);
  void (*spread)(const WinogradTiles& tiles);
  bool (*gather)(const WinogradSums& sums);  // false: some pixel is infinite or no number
};

const WinogradKernels& winograd_avx2();
const WinogradKernels& winograd_avx512();

template <typename V>
[[gnu::always_inline]] inline V load_some(const float* from, int count) {
  return count == V::kWidth ? V::load(from) : V::load_first(from, count);
}
template <typename V>
[[gnu::always_inline]] inline void store_some(V value, float* to, int count) {
  if (count == V::kWidth) {
    value.store(to);
  } else {
    value.store_first(to, count);
  }
}

// G g G' of the paper, along one dimension.
template <typename V>
[[gnu::always_inline]] inline void turn_three(V a, V b, V c, V (&to)[4]) {
  const V half = V::of(0.5F), ends = V::add(a, c);
  to[0] = a;
  to[1] = V::mul(V::add(ends, b), half);
  to[2] = V::mul(V::sub(ends, b), half);
  to[3] = c;
}

template <typename V>
void turn_taps(const WinogradTaps& taps) {
  V largest[9];
  for (V& one : largest) one = V::zero();
  for (int64_t first = 0; first < taps.channels; first += V::kWidth) {
    const int count = static_cast<int>(std::min<int64_t>(V::kWidth, taps.channels - first));
    V columns[3][4];  // column, row
#pragma GCC unroll 3
    for (int x = 0; x < 3; ++x) {
      const auto load = [&](int y) __attribute__((always_inline)) {
        const V tap = load_some<V>(taps.taps + (3 * y + x) * taps.channels + first, count);
        V& most = largest[3 * y + x];
        most = V::max(V::max(most, tap), V::sub(V::zero(), tap));
        return tap;
      };
      turn_three(load(0), load(1), load(2), columns[x]);
    }
#pragma GCC unroll 4
    for (int y = 0; y < 4; ++y) {
      V made[4];
      turn_three(columns[0][y], columns[1][y], columns[2][y], made);
#pragma GCC unroll 4
      for (int x = 0; x < 4; ++x) store_some(made[x], taps.to + (4 * y + x) * taps.plane + first, count);
    }
  }
  for (int i = 0; i < 9; ++i) taps.largest[i] = largest[i].largest();
}

// B' x B of the paper, along one dimension.
template <typename V>
[[gnu::always_inline]] inline void spread_four(V a, V b, V c, V d, V (&to)[4]) {
  to[0] = V::sub(a, c);
  to[1] = V::add(b, c);
  to[2] = V::sub(c, b);
  to[3] = V::sub(b, d);
}

// The first `count` channels from `c` on, of one tile. Returns the larger of `largest` and their
// magnitudes.
template <typename V, bool kInnerOnly>
[[gnu::always_inline]] inline V spread_part(const float* const* pixels, int64_t c, int count, float* to, int64_t plane,
                                            V largest) {
  V columns[4][4];  // column, row
#pragma GCC unroll 4
  for (int x = 0; x < 4; ++x) {
    const auto load = [&](int y) __attribute__((always_inline)) {
      const V pixel = load_some<V>(pixels[4 * y + x] + c, count);
      const bool inner = (x == 1 || x == 2) && (y == 1 || y == 2);
      if (inner || !kInnerOnly) largest = V::max(V::max(largest, pixel), V::sub(V::zero(), pixel));
      return pixel;
    };
    spread_four(load(0), load(1), load(2), load(3), columns[x]);
  }
#pragma GCC unroll 4
  for (int y = 0; y < 4; ++y) {
    V made[4];
    spread_four(columns[0][y], columns[1][y], columns[2][y], columns[3][y], made);
#pragma GCC unroll 4
    for (int x = 0; x < 4; ++x) made[x].store(to + (4 * y + x) * plane);
  }
  return largest;
}

template <typename V, bool kInnerOnly>
void spread_each(const WinogradTiles& tiles) {
  for (int64_t t = 0; t < tiles.tiles; ++t) {
    const float* const* const pixels = tiles.pixels + t * kWinogradPoints;
    float* const to = tiles.to + t * tiles.row;
    const auto spread = [&](int64_t c, int count, V largest) __attribute__((always_inline)) {
      return spread_part<V, kInnerOnly>(pixels, c, count, to + c, tiles.plane, largest);
    };
    V largest = V::zero();
    int64_t c = 0;
    for (; c + V::kWidth <= tiles.channels; c += V::kWidth) largest = spread(c, V::kWidth, largest);
    if (c < tiles.channels) largest = spread(c, static_cast<int>(tiles.channels - c), largest);
    tiles.largest[t] = largest.largest();
  }
}

template <typename V>
void spread_tiles(const WinogradTiles& tiles) {
  if (tiles.inner_only) {
    spread_each<V, true>(tiles);
  } else {
    spread_each<V, false>(tiles);
  }
}

// A' x A of the paper. Adds to `sum` what is no number where a pixel is not finite.
template <typename V>
[[gnu::always_inline]] inline V gather_tile_part(const WinogradSums& sums, int64_t t, int64_t n, int count, V sum) {
  const float* const from = sums.from + t * sums.row + n;
  V rows[2][4];  // of the result, column of the tile
#pragma GCC unroll 4
  for (int x = 0; x < 4; ++x) {
    const auto load = [&](int y) { return load_some<V>(from + (4 * y + x) * sums.plane, count); };
    const V first = load(0), second = load(1), third = load(2), last = load(3);
    rows[0][x] = V::add(V::add(first, second), third);
    rows[1][x] = V::sub(V::sub(second, third), last);
  }
  const V bias = sums.bias != nullptr ? load_some<V>(sums.bias + n, count) : V::zero();
#pragma GCC unroll 2
  for (int y = 0; y < 2; ++y) {
    const V* const row = rows[y];
    V left = V::add(V::add(V::add(row[0], row[1]), row[2]), bias);
    V right = V::add(V::sub(V::sub(row[1], row[2]), row[3]), bias);
    sum = V::fma(left, V::zero(), sum);
    sum = V::fma(right, V::zero(), sum);
    if (sums.limits != nullptr) left = (*sums.limits)(left), right = (*sums.limits)(right);
    float* const* const pixels = sums.pixels + t * kWinogradPixels + 2 * y;
    store_some(left, pixels[0] + n, count);
    store_some(right, pixels[1] + n, count);
  }
  return sum;
}

template <typename V>
bool gather_tiles(const WinogradSums& sums) {
  V sum = V::zero();
  for (int64_t t = 0; t < sums.tiles; ++t) {
    int64_t n = 0;
    for (; n + V::kWidth <= sums.outputs; n += V::kWidth) sum = gather_tile_part(sums, t, n, V::kWidth, sum);
    if (n < sums.outputs) sum = gather_tile_part(sums, t, n, static_cast<int>(sums.outputs - n), sum);
  }
  return sum.sum() == 0;
}

template <typename V>
constexpr WinogradKernels make_winograd_kernels() {
  return {&turn_taps<V>, &spread_tiles<V>, &gather_tiles<V>};
}

}  // namespace hetero::backend
