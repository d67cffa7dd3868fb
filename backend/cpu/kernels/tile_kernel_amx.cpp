// The loops of tile_kernel.h for AMX (tiles and bfloat16) and AVX-512 (F, BW, VL, DQ, BF16).
//
// They are called only if the processor has these. As in matvec_kernel.h, this file uses nothing of
// the standard library that has code.
//
// The tile registers of a block of 32 rows and 32 outputs: 0 to 3 have sums, 4 and 5 two tiles of
// x, 6 and 7 two of w. Loading a tile takes half the time of a product from the first-level cache,
// and a little more than one from the second.

#include "backend/cpu/kernels/tile_kernel.h"

#include <immintrin.h>

#include <type_traits>

#include "backend/cpu/kernels/tile_setup.h"

namespace hetero::backend {
namespace {

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- packing

__mmask16 lanes16(int64_t count) { return _cvtu32_mask16(count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1); }
__mmask32 lanes32(int64_t count) {
  return _cvtu32_mask32(count >= 32 ? 0xffffffffu : count <= 0 ? 0u : (1u << count) - 1);
}

// 32 floats.
struct Floats {
  __m512 low, high;

  static Floats load(const float* p, int64_t count) {
    if (count >= 32) return {_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16)};
    return {_mm512_maskz_loadu_ps(lanes16(count), p), _mm512_maskz_loadu_ps(lanes16(count - 16), p + 16)};
  }
  // The larger magnitudes of each lane, as bits.
  __m512i magnitude(__m512i largest) const {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(low), mask));
    return _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(high), mask));
  }
};

// rows[i] becomes column i.
void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  // fours[i + j] has of lane l, for each l, element 4 l + j of rows i to i + 3.
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    // Lanes 0 and 2 of rows 0 to 7.
    const __m512i even_low = _mm512_shuffle_i32x4(fours[j], fours[j + 4], 0x88);
    // Lanes 1 and 3.
    const __m512i odd_low = _mm512_shuffle_i32x4(fours[j], fours[j + 4], 0xdd);
    // The same of rows 8 to 15.
    const __m512i even_high = _mm512_shuffle_i32x4(fours[j + 8], fours[j + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(fours[j + 8], fours[j + 12], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    rows[j + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    rows[j + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    rows[j + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}

// The differences of the element types. 32 elements along k become planes of 16 pairs, and so do 16
// outputs of two elements each. The type chooses which elements make a pair, equally in x and in w.

// Pairs are of elements i and i + 16: no element changes its lane.
struct Float32 {
  using Stored = float;
  using Elements = Floats;
  static constexpr int kPlanes = 3;
  static constexpr bool kMeasured = true;
  static constexpr int64_t kPairStep = 1, kPairDistance = 16;
  static Elements load(const float* p, int64_t count) { return Floats::load(p, count); }
  static Elements load_two(const float* first, const float* second, int64_t count) {
    return {first == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes16(count), first),
            second == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes16(count), second)};
  }
  static __m512i largest(const Elements& elements, __m512i largest) { return elements.magnitude(largest); }
  // Two planes are rounded to nearest; what is left then has 7 bits.
  static void split(Elements elements, __m512i (&planes)[kPlanes]) {
    planes[0] = take(elements);
    planes[1] = take(elements);
    planes[2] = join(_mm512_castps_si512(elements.low), _mm512_castps_si512(elements.high));
  }
  static void split_two(const Elements& elements, __m512i (&planes)[kPlanes]) { split(elements, planes); }

 private:
  static __m512i upper() { return _mm512_set1_epi32(static_cast<int>(0xffff0000u)); }
  static __m512i join(__m512i low, __m512i high) {
    constexpr int kFirstOrBoth = 0xf8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, upper(), kFirstOrBoth);
  }
  static __m512i take(Elements& elements) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_add_epi32(_mm512_castps_si512(elements.low), half);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(elements.high), half);
    elements.low = _mm512_sub_ps(elements.low, _mm512_castsi512_ps(_mm512_and_si512(low, upper())));
    elements.high = _mm512_sub_ps(elements.high, _mm512_castsi512_ps(_mm512_and_si512(high, upper())));
    return join(low, high);
  }
};

// Pairs are of neighbours.
struct Bfloat16 {
  using Stored = uint16_t;
  using Elements = __m512i;
  static constexpr int kPlanes = 1;
  static constexpr bool kMeasured = false;
  static constexpr int64_t kPairStep = 2, kPairDistance = 1;
  static Elements load(const uint16_t* p, int64_t count) {
    return count >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(lanes32(count), p);
  }
  static Elements load_two(const uint16_t* first, const uint16_t* second, int64_t count) {
    const __m256i low = first == nullptr ? _mm256_setzero_si256() : _mm256_maskz_loadu_epi16(lanes16(count), first);
    const __m256i high = second == nullptr ? _mm256_setzero_si256() : _mm256_maskz_loadu_epi16(lanes16(count), second);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  // Of 32 lanes.
  static __m512i largest(const Elements& elements, __m512i largest) {
    return _mm512_max_epu16(largest, _mm512_and_si512(elements, _mm512_set1_epi16(0x7fff)));
  }
  static void split(const Elements& elements, __m512i (&planes)[kPlanes]) { planes[0] = elements; }
  static void split_two(const Elements& elements, __m512i (&planes)[kPlanes]) {
    alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                             21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                             11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    planes[0] = _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), elements);
  }
};

// Floats to multiply with bfloat16, in its pairs.
struct TwoPlanes {
  using Stored = float;
  using Elements = Floats;
  static constexpr int kPlanes = 2;
  static constexpr bool kMeasured = false;
  static Elements load(const float* p, int64_t count) { return Floats::load(p, count); }
  static __m512i largest(const Elements&, __m512i largest) { return largest; }
  static void split(const Elements& elements, __m512i (&planes)[kPlanes]) {
    const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(elements.high, elements.low));
    const __m512 low = _mm512_sub_ps(elements.low, widen(_mm512_castsi512_si256(rounded)));
    const __m512 high = _mm512_sub_ps(elements.high, widen(_mm512_extracti64x4_epi64(rounded, 1)));
    planes[0] = rounded;
    planes[1] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }

 private:
  static __m512 widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
};

template <typename E>
struct AlsoMeasured : E {
  static constexpr bool kMeasured = true;
};
template <typename E>
using Measured = std::conditional_t<E::kMeasured, E, AlsoMeasured<E>>;

void note(Magnitudes& magnitudes, uint32_t largest) {
  if (largest > magnitudes.largest) magnitudes.largest = largest;
  if (largest != 0 && largest < magnitudes.least) magnitudes.least = largest;
}

void note_lanes(Magnitudes& magnitudes, __m512i largest) {
  alignas(64) uint32_t lanes[16];
  _mm512_store_si512(lanes, largest);
  for (const uint32_t lane : lanes) note(magnitudes, lane);
}

// Of 32 numbers of 16 bits.
uint32_t largest_half(__m512i lanes) {
  const __m512i mask = _mm512_set1_epi32(0xffff);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(lanes, mask), _mm512_srli_epi32(lanes, 16)));
}

// A tile of each plane, the tiles `distance` apart, of which the planes have columns: lane j of
// planes[i] becomes lane i of row j.
template <typename E>
void store_transposed(const __m512i (&planes)[16][E::kPlanes], std::byte* to, int64_t distance) {
  for (int plane = 0; plane < E::kPlanes; ++plane, to += distance) {
    __m512i rows[16];
    for (int i = 0; i < 16; ++i) rows[i] = planes[i][plane];
    transpose(rows);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, rows[i]);
  }
}

// One tile after the other, so that writes are adjacent. More rows are read than the processor
// prefetches by itself.
template <typename E>
Magnitudes pack_rows(const void* x, int64_t stride, int64_t rows, int64_t k, std::byte* to, int64_t to_stride,
                     int64_t tile_stride) {
  constexpr int64_t kAhead = 2 * kTileDepth;
  Magnitudes magnitudes;
  for (int64_t first = 0; first < rows; first += kTileRows, to += to_stride) {
    const auto* const from = static_cast<const typename E::Stored*>(x) + first * stride;
    const int64_t count = least(kTileRows, rows - first);
    __m512i largest[kTileRows] = {};
    std::byte* tile = to;
    for (int64_t i = 0; i < k; i += kTileDepth, tile += E::kPlanes * tile_stride) {
      for (int64_t row = 0; row < count; ++row) {
        const auto* const place = from + row * stride + i;
        __builtin_prefetch(place + kAhead);
        if constexpr (sizeof(*place) == 4) __builtin_prefetch(place + kAhead + kTileDepth / 2);
        const typename E::Elements elements = E::load(place, k - i);
        if constexpr (E::kMeasured) largest[row] = E::largest(elements, largest[row]);
        __m512i planes[E::kPlanes];
        E::split(elements, planes);
        for (int plane = 0; plane < E::kPlanes; ++plane) {
          _mm512_store_si512(tile + plane * tile_stride + row * 64, planes[plane]);
        }
      }
    }
    if constexpr (E::kMeasured) {
      for (int64_t row = 0; row < count; ++row) {
        note(magnitudes, E::kPlanes == 1 ? largest_half(largest[row]) << 16 : _mm512_reduce_max_epu32(largest[row]));
      }
    }
  }
  return magnitudes;
}

// 16 pairs of rows of memory, each of `count` elements side by side, that lie at `from`: pair i in
// the lanes of planes[i].
template <typename E>
void load_pairs(const typename E::Stored* from, int64_t stride, int64_t count, int64_t depth,
                __m512i (&planes)[16][E::kPlanes], __m512i& largest) {
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t first = i * E::kPairStep, second = first + E::kPairDistance;
    const typename E::Elements elements = E::load_two(first < depth ? from + first * stride : nullptr,
                                                      second < depth ? from + second * stride : nullptr, count);
    largest = E::largest(elements, largest);
    E::split_two(elements, planes[i]);
  }
}

// The same of x whose memory is [k, rows]. Memory is read in its order.
template <typename E>
Magnitudes pack_rows_across(const void* x, int64_t stride, int64_t rows, int64_t k, std::byte* to, int64_t to_stride) {
  constexpr int64_t kTogether = 32;  // tiles
  Magnitudes magnitudes;
  for (int64_t begin = 0; begin < rows; begin += kTogether * kTileRows, to += kTogether * to_stride) {
    const int64_t end = least(rows, begin + kTogether * kTileRows);
    __m512i largest[kTogether] = {};
    for (int64_t i = 0; i < k; i += kTileDepth) {
      for (int64_t first = begin; first < end; first += kTileRows) {
        const int64_t tile = (first - begin) / kTileRows;
        __m512i planes[16][E::kPlanes];
        load_pairs<E>(static_cast<const typename E::Stored*>(x) + i * stride + first, stride, end - first,
                      least(kTileDepth, k - i), planes, largest[tile]);
        store_transposed<E>(planes, to + tile * to_stride + i / kTileDepth * E::kPlanes * kTileBytes, kTileBytes);
      }
    }
    if constexpr (E::kMeasured) {
      for (int64_t first = begin; first < end; first += kTileRows)
        note_lanes(magnitudes, largest[(first - begin) / kTileRows]);
    }
  }
  return magnitudes;
}

template <typename E>
void pack_floats(const float* x, int64_t stride, int64_t rows, int64_t k, std::byte* to, int64_t to_stride) {
  pack_rows<E>(x, stride, rows, k, to, to_stride, kTileBytes);
}

// 16 outputs, w's memory a row for each: their planes of 32 elements along k, as tiles two apart.
// `largest` is of each output.
template <typename E>
void pack_outputs(const typename E::Stored* w, int64_t stride, int64_t count, int64_t depth, std::byte* to,
                  __m512i (&largest)[16]) {
  __m512i planes[16][E::kPlanes];
  for (int64_t i = 0; i < 16; ++i) {
    const typename E::Elements elements = E::load(i < count ? w + i * stride : w, i < count ? depth : 0);
    largest[i] = E::largest(elements, largest[i]);
    E::split(elements, planes[i]);
  }
  store_transposed<E>(planes, to, 2 * kTileBytes);
}

// The same with w's memory a row for each element along k. `largest` has an output in each lane.
template <typename E>
void pack_columns(const typename E::Stored* w, int64_t stride, int64_t count, int64_t depth, std::byte* to,
                  __m512i& largest) {
  __m512i planes[16][E::kPlanes];
  load_pairs<E>(w, stride, count, depth, planes, largest);
  for (int i = 0; i < 16; ++i) {
    for (int plane = 0; plane < E::kPlanes; ++plane) {
      _mm512_store_si512(to + plane * 2 * kTileBytes + i * 64, planes[i][plane]);
    }
  }
}

template <typename E>
Magnitudes pack_panel(const void* w, int64_t stride, bool columns, int64_t count, int64_t k, std::byte* to) {
  const auto* const from = static_cast<const typename E::Stored*>(w);
  Magnitudes magnitudes;
  for (int half = 0; half < 2; ++half) {
    const int64_t here = count - half * 16;
    // An empty half is of zeros, and reads none of its own.
    const auto* const first = from + (here <= 0 ? 0 : half * 16 * (columns ? 1 : stride));
    std::byte* tile = to + half * kTileBytes;
    __m512i largest[16] = {};
    for (int64_t i = 0; i < k; i += kTileDepth, tile += E::kPlanes * 2 * kTileBytes) {
      const int64_t depth = least(kTileDepth, k - i);
      if (columns) {
        pack_columns<E>(first + i * stride, stride, here, depth, tile, largest[0]);
      } else {
        pack_outputs<E>(first + i, stride, here, depth, tile, largest);
      }
    }
    if constexpr (E::kPlanes == 1) {
      for (const __m512i& each : largest) note(magnitudes, largest_half(each) << 16);
    } else if (columns) {
      note_lanes(magnitudes, largest[0]);
    } else {
      for (const __m512i& each : largest) note(magnitudes, _mm512_reduce_max_epu32(each));
    }
  }
  return magnitudes;
}

// ---- multiplying

// The products of planes, by number. Two neighbours share one, which is loaded once; smaller
// products come first, as far as that goes.
struct Pair {
  int x, w;
};
template <int x_planes, int w_planes>
inline constexpr Pair kPairs[] = {{0, 0}};
template <>
inline constexpr Pair kPairs<3, 3>[] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};
template <>
inline constexpr Pair kPairs<2, 1>[] = {{1, 0}, {0, 0}};

// Prefetches a piece with each step of k; all at once would evict the tiles in flight. It takes
// lines of the next operand, and the rows of results, one or two lines each, which would have to
// wait otherwise.
struct Soon {
  const std::byte* next;
  int64_t next_lines;  // with each step
  const std::byte* y;
  int64_t y_stride;  // bytes
  int64_t y_rows;
  int64_t y_rows_a_step;
  bool two_lines;

  void ask() {
    for (int64_t i = 0; i < next_lines; ++i, next += 64) _mm_prefetch(next, _MM_HINT_T1);
    for (int64_t i = 0; i < y_rows_a_step && y_rows > 0; ++i, --y_rows, y += y_stride) {
      __builtin_prefetch(y, 1);
      if (two_lines) __builtin_prefetch(y + 64, 1);
    }
  }
};

template <int x_planes, int w_planes, bool two>
void add_products(const std::byte* x, int64_t x_stride, int64_t tile_stride, const std::byte* w, int64_t depth,
                  Soon& soon) {
  constexpr auto& kOrder = kPairs<x_planes, w_planes>;
  constexpr int kCount = sizeof(kOrder) / sizeof(Pair);
  for (int64_t tile = 0; tile < depth; ++tile) {
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) {
      const Pair pair = kOrder[i];
      if (i == 0 || pair.x != kOrder[i - 1].x) {
        const std::byte* const rows = x + (tile * x_planes + pair.x) * tile_stride;
        _tile_loadd(4, rows, 64);
        if constexpr (two) _tile_loadd(5, rows + x_stride, 64);
      }
      if (i == 0 || pair.w != kOrder[i - 1].w) {
        const std::byte* const outputs = w + (tile * w_planes + pair.w) * 2 * kTileBytes;
        _tile_loadd(6, outputs, 64);
        _tile_loadd(7, outputs + kTileBytes, 64);
      }
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (two) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    soon.ask();
  }
}

template <bool two>
void begin_sums(const float* from, int64_t stride) {
  // `stride` 0 makes all rows the same.
  _tile_loadd(0, from, stride * 4);
  _tile_loadd(1, from + 16, stride * 4);
  if constexpr (two) {
    _tile_loadd(2, from + 16 * stride, stride * 4);
    _tile_loadd(3, from + 16 * stride + 16, stride * 4);
  }
}

template <bool two>
void store_sums(float* to, int64_t stride) {
  _tile_stored(0, to, stride * 4);
  _tile_stored(1, to + 16, stride * 4);
  if constexpr (two) {
    _tile_stored(2, to + 16 * stride, stride * 4);
    _tile_stored(3, to + 16 * stride + 16, stride * 4);
  }
}

void limit(const Limits& limits, __m512& sums) {
  // The second operand is the result where one is NaN.
  sums = _mm512_min_ps(_mm512_set1_ps(limits.high), _mm512_max_ps(_mm512_set1_ps(limits.low), sums));
}

// `bias` is added where it is not null. Sums of float32 have it already.
void store_row(const float* sums, const float*, const Limits* limits, int64_t count, float* to) {
  __m512 low = _mm512_load_ps(sums), high = _mm512_load_ps(sums + 16);
  if (limits != nullptr) limit(*limits, low), limit(*limits, high);
  _mm512_mask_storeu_ps(to, lanes16(count), low);
  _mm512_mask_storeu_ps(to + 16, lanes16(count - 16), high);
}

void store_row(const float* sums, const float* bias, const Limits* limits, int64_t count, uint16_t* to) {
  __m512 low = _mm512_load_ps(sums), high = _mm512_load_ps(sums + 16);
  if (bias != nullptr) {
    low = _mm512_add_ps(low, _mm512_load_ps(bias));
    high = _mm512_add_ps(high, _mm512_load_ps(bias + 16));
  }
  if (limits != nullptr) limit(*limits, low), limit(*limits, high);
  const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  _mm512_mask_storeu_epi16(to, lanes32(count), rounded);
}

template <bool two>
void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <typename X, typename E, bool two>
void multiply_rows(const TilePart& part, int64_t row) {
  const int64_t rows = least(part.rows - row, 2 * kTileRows);
  int64_t at = part.line == 0 ? 0 : row % part.line;  // in a line
  int64_t before = row;                               // outputs
  if (part.line != 0) before = row / part.line * part.line_outputs + least(at, part.line_outputs);
  auto* y = static_cast<typename E::Stored*>(part.y) + before * part.y_stride;
  // Loading a bias into tiles takes as long as two products, so vectors add it where they round.
  const bool rounds = E::kPlanes == 1 && part.from == nullptr && part.to == nullptr;
  const float* const late_bias = rounds ? part.bias : nullptr;
  if (part.from != nullptr) {
    begin_sums<two>(part.from + row * part.sum_stride, part.sum_stride);
  } else if (part.bias != nullptr && late_bias == nullptr) {
    begin_sums<two>(part.bias, 0);
  } else {
    clear_sums<two>();
  }
  constexpr auto kItem = static_cast<int64_t>(sizeof(*y));
  const int64_t lines = part.next == nullptr ? 0 : part.next_lines, steps = part.taps * part.depth;
  Soon soon{.next = part.next + row / (2 * kTileRows) * steps * lines * 64,
            .next_lines = lines,
            .y = reinterpret_cast<const std::byte*>(y),
            .y_stride = part.y_stride * kItem,
            .y_rows = part.to == nullptr ? rows : 0,
            .y_rows_a_step = steps > 0 ? (rows + steps - 1) / steps : 0,
            .two_lines = part.count * kItem > 64};
  for (int64_t tap = 0; tap < part.taps; ++tap) {
    const std::byte* const x =
        part.x + row / kTileRows * part.x_stride + (part.shifts == nullptr ? 0 : part.shifts[tap]);
    const std::byte* const w = part.w + tap * part.depth * E::kPlanes * 2 * kTileBytes;
    add_products<X::kPlanes, E::kPlanes, two>(x, part.x_stride, part.tile_stride, w, part.depth, soon);
  }
  if (part.to != nullptr) return store_sums<two>(part.to + row * part.sum_stride, part.sum_stride);
  if constexpr (E::kPlanes == 3) {
    const bool whole = part.count == kPanel && rows == (two ? 2 : 1) * kTileRows;
    if (whole && part.limits == nullptr && (part.line == 0 || at + rows <= part.line_outputs))
      return store_sums<two>(y, part.y_stride);
  }
  alignas(64) float sums[2 * kTileRows * kPanel];
  store_sums<two>(sums, kPanel);
  for (int64_t i = 0; i < rows; ++i) {
    if (part.line == 0 || at < part.line_outputs) {
      store_row(sums + i * kPanel, late_bias, part.limits, part.count, y);
      y += part.y_stride;
    }
    if (++at == part.line) at = 0;
  }
}

template <typename X, typename E>
void multiply(const TilePart& part) {
  finish_writes();
  for (int64_t row = 0; row < part.rows; row += 2 * kTileRows) {
    if (part.rows - row > kTileRows) {
      multiply_rows<X, E, true>(part, row);
    } else {
      multiply_rows<X, E, false>(part, row);
    }
  }
}

template <typename E, typename Floats>
constexpr TileKernels kKernels = {&pack_rows<E>,  &pack_rows<Measured<E>>, &pack_rows_across<E>, &pack_floats<Floats>,
                                  &pack_panel<E>, &multiply<E, E>,         &multiply<Floats, E>};

}  // namespace

const TileKernels& tile_kernels(Element element) {
  return element == Element::kFloat32 ? kKernels<Float32, Float32> : kKernels<Bfloat16, TwoPlanes>;
}

TileUnit::TileUnit(int64_t rows) {
  TileConfiguration wanted;
  // Sums and x have only the existing rows, which saves time if they are few.
  for (int tile = 0; tile < 8; ++tile) wanted.set(tile, tile < 6 ? least(rows, kTileRows) : kTileRows, 64);
  set_up_tiles(wanted, before_);
}

TileUnit::~TileUnit() { restore_tiles(before_); }

}  // namespace hetero::backend
