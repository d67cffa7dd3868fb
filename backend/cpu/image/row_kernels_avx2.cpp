// Compiled for AVX2; called only where the processor has it. See row_kernels.h.

#include "backend/cpu/image/row_kernels.h"

#include <immintrin.h>

namespace hetero::backend {
namespace {

__m128i load_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m256i load_words(const int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// ---- bilinear

// Per lane: 16-bit pairs (first pixel, second pixel) of each channel, from the 6 or 8 bytes of two
// pixels.
template <int C>
__m256i spread_mask() {
  alignas(32) int8_t mask[32];
  for (int i = 0; i < 32; ++i) mask[i] = -1;
  for (int lane = 0; lane < 2; ++lane) {
    for (int c = 0; c < C; ++c) {
      mask[16 * lane + 4 * c] = static_cast<int8_t>(c);
      mask[16 * lane + 4 * c + 2] = static_cast<int8_t>(C + c);
    }
  }
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(mask));
}

// Per lane: the words of two pixels with four channels each become those of two pixels with C.
template <int C>
__m256i pack_mask() {
  alignas(32) int8_t mask[32];
  for (int i = 0; i < 32; ++i) mask[i] = -1;
  for (int lane = 0; lane < 2; ++lane) {
    for (int i = 0; i < 2 * C; ++i) {
      const int word = i / C * 4 + i % C;
      mask[16 * lane + 2 * i] = static_cast<int8_t>(2 * word);
      mask[16 * lane + 2 * i + 1] = static_cast<int8_t>(2 * word + 1);
    }
  }
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(mask));
}

__m256i load_two(const uint8_t* a, const uint8_t* b) {
  const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(a));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)),
                                 1);
}

template <int C>
int64_t linear_columns(const uint8_t* row, int64_t readable, const LinearColumns& columns, int16_t* out) {
  const __m256i spread = spread_mask<C>(), pack = pack_mask<C>();
  const int32_t* const first = columns.first;
  int64_t x = 0;
  for (; x + 4 <= columns.count && first[x + 3] + 8 <= readable; x += 4) {
    const int16_t* const weights = columns.repeated + 8 * x;
    const __m256i even = _mm256_shuffle_epi8(load_two(row + first[x], row + first[x + 2]), spread);
    const __m256i odd = _mm256_shuffle_epi8(load_two(row + first[x + 1], row + first[x + 3]), spread);
    const __m256i even_sums = _mm256_srai_epi32(_mm256_madd_epi16(even, load_words(weights)), 4);
    const __m256i odd_sums = _mm256_srai_epi32(_mm256_madd_epi16(odd, load_words(weights + 16)), 4);
    const __m256i words = _mm256_shuffle_epi8(_mm256_packs_epi32(even_sums, odd_sums), pack);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + C * x), _mm256_castsi256_si128(words));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + C * (x + 2)), _mm256_extracti128_si256(words, 1));
  }
  return x;
}

int64_t linear_columns_of(const uint8_t* row, int64_t readable, const LinearColumns& columns, int16_t* out) {
  if (columns.second == 0) return 0;
  switch (columns.channels) {
    case 1:
      return linear_columns<1>(row, readable, columns, out);
    case 2:
      return linear_columns<2>(row, readable, columns, out);
    case 3:
      return linear_columns<3>(row, readable, columns, out);
    case 4:
      return linear_columns<4>(row, readable, columns, out);
    default:
      return 0;
  }
}

__m256i linear_words(const int16_t* upper, const int16_t* lower, __m256i weight, __m256i lower_weight) {
  const __m256i sum = _mm256_add_epi16(_mm256_mulhi_epi16(load_words(upper), weight),
                                       _mm256_mulhi_epi16(load_words(lower), lower_weight));
  return _mm256_srai_epi16(_mm256_add_epi16(sum, _mm256_set1_epi16(2)), 2);
}

int64_t linear_rows(const int16_t* upper, const int16_t* lower, int weight, int lower_weight, int64_t count,
                    uint8_t* out) {
  const __m256i a = _mm256_set1_epi16(static_cast<int16_t>(weight));
  const __m256i b = _mm256_set1_epi16(static_cast<int16_t>(lower_weight));
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i bytes = _mm256_packus_epi16(linear_words(upper + i, lower + i, a, b),
                                              linear_words(upper + i + 16, lower + i + 16, a, b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_permute4x64_epi64(bytes, 0xd8));
  }
  return i;
}

// ---- filters
//
// A weight of 22 bits and a sign is upper * 2^12 + lower, both of 16 bits, so that pairs of taps
// are multiplied and added at once. The sum of products is exact modulo 2^32, as that of whole
// weights.

// Per lane: pairs of taps in 16 bits, from 16 bytes at the first tap. The two lanes have the first
// and the second half of a step's taps.
template <int C>
__m256i taps_mask() {
  alignas(32) int8_t mask[32];
  for (int i = 0; i < 32; ++i) mask[i] = -1;
  constexpr int kTapsOfLane = C == 1 ? 8 : C == 2 ? 4 : 2;
  for (int lane = 0; lane < 2; ++lane) {
    for (int t = 0; t < kTapsOfLane; ++t) {
      for (int c = 0; c < C; ++c) {
        const int pair = t / 2 * C + c;
        mask[16 * lane + 4 * pair + 2 * (t % 2)] = static_cast<int8_t>((kTapsOfLane * lane + t) * C + c);
      }
    }
  }
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(mask));
}

__m256i whole_sums(__m256i upper, __m256i lower) {
  return _mm256_add_epi32(_mm256_slli_epi32(upper, kLowerBits), lower);
}

// [c0 c1 c2 c3] of one row; channels beyond C are left undefined.
template <int C>
__m128i channel_sums(__m256i upper, __m256i lower) {
  const __m256i sums = whole_sums(upper, lower);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  if (C <= 2) four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  if (C == 1) four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_srai_epi32(_mm_add_epi32(four, _mm_set1_epi32(1 << (kFilterBits - 1))), kFilterBits);
}

void store_four(uint8_t* p, int four) { __builtin_memcpy(p, &four, sizeof(four)); }

template <int C>
void filter_columns(const uint8_t* const* rows, const FilterColumns& columns, uint8_t* const* out) {
  const __m256i mask = taps_mask<C>();
  constexpr int64_t kAdvance = filter_step(C) * C;
  const int16_t* weights = columns.repeated;
  for (int64_t x = 0; x < columns.count; ++x) {
    __m256i upper[kRowsAtOnce], lower[kRowsAtOnce];
    for (int64_t r = 0; r < kRowsAtOnce; ++r) upper[r] = lower[r] = _mm256_setzero_si256();
    int64_t at = columns.first[x];
    for (int64_t step = 0; step < columns.steps; ++step, at += kAdvance, weights += 32) {
      const __m256i a = load_words(weights), b = load_words(weights + 16);
      for (int64_t r = 0; r < kRowsAtOnce; ++r) {
        const __m256i taps = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_bytes(rows[r] + at)), mask);
        upper[r] = _mm256_add_epi32(upper[r], _mm256_madd_epi16(taps, a));
        lower[r] = _mm256_add_epi32(lower[r], _mm256_madd_epi16(taps, b));
      }
    }
    __m128i sums[kRowsAtOnce];
    for (int64_t r = 0; r < kRowsAtOnce; ++r) sums[r] = channel_sums<C>(upper[r], lower[r]);
    const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(sums[0], sums[1]), _mm_packs_epi32(sums[2], sums[3]));
    store_four(out[0] + C * x, _mm_cvtsi128_si32(bytes));
    store_four(out[1] + C * x, _mm_extract_epi32(bytes, 1));
    store_four(out[2] + C * x, _mm_extract_epi32(bytes, 2));
    store_four(out[3] + C * x, _mm_extract_epi32(bytes, 3));
  }
}

void filter_columns_of(const uint8_t* const* rows, const FilterColumns& columns, uint8_t* const* out) {
  switch (columns.channels) {
    case 1:
      return filter_columns<1>(rows, columns, out);
    case 2:
      return filter_columns<2>(rows, columns, out);
    case 3:
      return filter_columns<3>(rows, columns, out);
    default:
      return filter_columns<4>(rows, columns, out);
  }
}

__m256i pair(const int16_t* p) {
  int32_t both;
  __builtin_memcpy(&both, p, sizeof(both));
  return _mm256_set1_epi32(both);
}

int64_t filter_rows(const uint8_t* const* rows, const int16_t* upper, const int16_t* lower, int64_t taps, int64_t count,
                    uint8_t* out) {
  const __m256i half = _mm256_set1_epi32(1 << (kFilterBits - 1));
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    // The sums of elements 0 to 7 and 8 to 15.
    __m256i a = _mm256_setzero_si256(), b = _mm256_setzero_si256(), c = _mm256_setzero_si256(),
            d = _mm256_setzero_si256();
    for (int64_t t = 0; t < taps; t += 2) {
      const __m128i one = load_bytes(rows[t] + i), two = load_bytes(rows[t + 1] + i);
      const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(one, two));
      const __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(one, two));
      const __m256i up = pair(upper + t), low = pair(lower + t);
      a = _mm256_add_epi32(a, _mm256_madd_epi16(first, up));
      b = _mm256_add_epi32(b, _mm256_madd_epi16(first, low));
      c = _mm256_add_epi32(c, _mm256_madd_epi16(second, up));
      d = _mm256_add_epi32(d, _mm256_madd_epi16(second, low));
    }
    const __m256i first = _mm256_srai_epi32(_mm256_add_epi32(whole_sums(a, b), half), kFilterBits);
    const __m256i second = _mm256_srai_epi32(_mm256_add_epi32(whole_sums(c, d), half), kFilterBits);
    // In each lane 4 elements of the first 8 and 4 of the last.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bytes);
  }
  return i;
}

// ---- pixels at places

// [32 - f, f] of a place's fraction f, in 16 bits, repeated.
struct Fractions {
  alignas(32) int16_t across[32][8];
  alignas(32) int16_t down[32][16];

  Fractions() {
    for (int f = 0; f < 32; ++f) {
      for (int i = 0; i < 8; ++i) across[f][i] = static_cast<int16_t>(i % 2 == 0 ? 32 - f : f);
      for (int i = 0; i < 16; ++i) down[f][i] = static_cast<int16_t>(i < 8 ? 32 - f : f);
    }
  }
};

// The bytes of four pixels with four channels each become those of four pixels with C.
template <int C>
__m128i pixel_mask() {
  alignas(16) int8_t mask[16];
  for (int i = 0; i < 16; ++i) mask[i] = static_cast<int8_t>(i < 4 * C ? i / C * 4 + i % C : -1);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(mask));
}

// The four channels of a pixel, as whole numbers with 10 more bits.
__m128i bilinear_sums(const uint8_t* upper, const uint8_t* lower, const int16_t* across, const int16_t* down,
                      __m256i spread) {
  const __m256i pixels = _mm256_shuffle_epi8(load_two(upper, lower), spread);
  const __m256i columns = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(across)));
  const __m256i weights = _mm256_mullo_epi16(columns, _mm256_load_si256(reinterpret_cast<const __m256i*>(down)));
  const __m256i sums = _mm256_madd_epi16(pixels, weights);
  return _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
}

template <int C>
int64_t bilinear_pixels(const PixelSource& source, const int32_t* x, const int32_t* y, int64_t count, uint8_t* out) {
  static const Fractions fractions;
  const __m256i spread = spread_mask<C>();
  const __m128i pack = pixel_mask<C>();
  const __m128i half = _mm_set1_epi32(512), none = _mm_set1_epi32(-1);
  const __m128i right = _mm_set1_epi32(source.width - 1), bottom = _mm_set1_epi32(source.height - 1);
  const __m128i last = _mm_set1_epi32(static_cast<int32_t>(source.bytes - source.stride - 8));
  const __m128i stride = _mm_set1_epi32(static_cast<int32_t>(source.stride)), channels = _mm_set1_epi32(C);
  int64_t i = 0;
  for (; i + kPixelGroup <= count; i += kPixelGroup) {
    const __m128i places_x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    const __m128i places_y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(y + i));
    const __m128i left = _mm_srai_epi32(places_x, 5), top = _mm_srai_epi32(places_y, 5);
    const __m128i at = _mm_add_epi32(_mm_mullo_epi32(top, stride), _mm_mullo_epi32(left, channels));
    const __m128i inside = _mm_and_si128(_mm_and_si128(_mm_cmpgt_epi32(left, none), _mm_cmpgt_epi32(right, left)),
                                         _mm_and_si128(_mm_cmpgt_epi32(top, none), _mm_cmpgt_epi32(bottom, top)));
    if (_mm_movemask_epi8(_mm_andnot_si128(_mm_cmpgt_epi32(at, last), inside)) != 0xffff) break;
    const int64_t first = _mm_cvtsi128_si64(at), second = _mm_extract_epi64(at, 1);
    const uint8_t* const pixels[kPixelGroup] = {source.data + static_cast<uint32_t>(first), source.data + (first >> 32),
                                                source.data + static_cast<uint32_t>(second),
                                                source.data + (second >> 32)};
    __m128i sums[kPixelGroup];
    for (int64_t k = 0; k < kPixelGroup; ++k) {
      sums[k] = bilinear_sums(pixels[k], pixels[k] + source.stride, fractions.across[x[i + k] & 31],
                              fractions.down[y[i + k] & 31], spread);
      sums[k] = _mm_srli_epi32(_mm_add_epi32(sums[k], half), 10);
    }
    const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(sums[0], sums[1]), _mm_packs_epi32(sums[2], sums[3]));
    const __m128i packed = _mm_shuffle_epi8(bytes, pack);
    if (C == 4) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + C * i), packed);
    } else {
      __builtin_memcpy(out + C * i, &packed, kPixelGroup * C);
    }
  }
  return i;
}

int64_t bilinear_pixels_of(const PixelSource& source, const int32_t* x, const int32_t* y, int64_t count, uint8_t* out) {
  if (source.bytes > INT32_MAX) return 0;
  switch (source.channels) {
    case 1:
      return bilinear_pixels<1>(source, x, y, count, out);
    case 2:
      return bilinear_pixels<2>(source, x, y, count, out);
    case 3:
      return bilinear_pixels<3>(source, x, y, count, out);
    case 4:
      return bilinear_pixels<4>(source, x, y, count, out);
    default:
      return 0;
  }
}

// As PerspectivePlaces of cv_warp.cpp.
int64_t perspective_places(const double* matrix, const double* start, double scale, int64_t count, int32_t* x,
                           int32_t* y) {
  const __m256d lowest = _mm256_set1_pd(INT32_MIN), highest = _mm256_set1_pd(INT32_MAX), zero = _mm256_setzero_pd();
  const __m256d step_x = _mm256_set1_pd(matrix[0]), step_y = _mm256_set1_pd(matrix[3]);
  const __m256d step_w = _mm256_set1_pd(matrix[6]), scales = _mm256_set1_pd(scale);
  const __m256d start_x = _mm256_set1_pd(start[0]), start_y = _mm256_set1_pd(start[1]);
  const __m256d start_w = _mm256_set1_pd(start[2]);
  __m256d step = _mm256_setr_pd(0, 1, 2, 3);
  int64_t i = 0;
  for (; i + 4 <= count; i += 4, step = _mm256_add_pd(step, _mm256_set1_pd(4))) {
    const __m256d w = _mm256_add_pd(start_w, _mm256_mul_pd(step_w, step));
    const __m256d inverse = _mm256_andnot_pd(_mm256_cmp_pd(w, zero, _CMP_EQ_OQ), _mm256_div_pd(scales, w));
    const __m256d at_x = _mm256_mul_pd(_mm256_add_pd(start_x, _mm256_mul_pd(step_x, step)), inverse);
    const __m256d at_y = _mm256_mul_pd(_mm256_add_pd(start_y, _mm256_mul_pd(step_y, step)), inverse);
    const __m256d inside_x = _mm256_max_pd(_mm256_min_pd(at_x, highest), lowest);
    const __m256d inside_y = _mm256_max_pd(_mm256_min_pd(at_y, highest), lowest);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(x + i), _mm256_cvtpd_epi32(inside_x));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), _mm256_cvtpd_epi32(inside_y));
  }
  return i;
}

// ---- pixels at places, in doubles: a vector has the channels of a pixel

__m256d channels_at(const uint8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)));
}

struct Bilinear {
  static constexpr int kTaps = 2;
  static __m256d blend(const __m256d* v, __m256d d) {
    return _mm256_add_pd(v[0], _mm256_mul_pd(_mm256_sub_pd(v[1], v[0]), d));
  }
};

struct Bicubic {
  static constexpr int kTaps = 4;
  static __m256d blend(const __m256d* v, __m256d d) {
    const __m256d first = _mm256_sub_pd(v[0], v[1]), second = _mm256_sub_pd(v[2], v[0]);
    const __m256d third = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(first, first), v[2]), v[3]);
    // -v0 + v1 - v2 + v3, from the left.
    const __m256d fourth = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(v[1], v[0]), v[2]), v[3]);
    const __m256d inner = _mm256_add_pd(third, _mm256_mul_pd(d, fourth));
    return _mm256_add_pd(v[1], _mm256_mul_pd(d, _mm256_add_pd(second, _mm256_mul_pd(d, inner))));
  }
};

template <typename Filter, int C>
int64_t double_pixels(const PixelSource& source, const double* x, const double* y, int64_t count, uint8_t* out) {
  constexpr int kTaps = Filter::kTaps, kBefore = kTaps / 2 - 1;
  const double right = source.width - kTaps + kBefore, bottom = source.height - kTaps + kBefore;
  const int64_t last = source.bytes - (kTaps - 1) * (source.stride + C) - 4;
  int64_t i = 0;
  for (; i < count; ++i) {
    const double from_x = x[i] - 0.5, from_y = y[i] - 0.5;
    // Places from kBefore on, so that cutting off rounds down.
    if (!(from_x >= kBefore && from_x < right + 1 && from_y >= kBefore && from_y < bottom + 1)) break;
    const auto left = static_cast<int32_t>(from_x), top = static_cast<int32_t>(from_y);
    const int64_t at = (top - kBefore) * source.stride + (left - kBefore) * C;
    if (at > last) break;
    const __m256d dx = _mm256_set1_pd(from_x - left), dy = _mm256_set1_pd(from_y - top);
    __m256d down[kTaps];
    for (int r = 0; r < kTaps; ++r) {
      const uint8_t* const pixels = source.data + at + r * source.stride;
      __m256d across[kTaps];
      for (int k = 0; k < kTaps; ++k) across[k] = channels_at(pixels + k * C);
      down[r] = Filter::blend(across, dx);
    }
    const __m128i numbers = _mm256_cvttpd_epi32(Filter::blend(down, dy));
    const __m128i words = _mm_packs_epi32(numbers, numbers);
    const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    __builtin_memcpy(out + C * i, &bytes, C);
  }
  return i;
}

template <typename Filter>
int64_t double_pixels_of(const PixelSource& source, const double* x, const double* y, int64_t count, uint8_t* out) {
  switch (source.channels) {
    case 1:
      return double_pixels<Filter, 1>(source, x, y, count, out);
    case 2:
      return double_pixels<Filter, 2>(source, x, y, count, out);
    case 3:
      return double_pixels<Filter, 3>(source, x, y, count, out);
    case 4:
      return double_pixels<Filter, 4>(source, x, y, count, out);
    default:
      return 0;
  }
}

// ---- colours

int64_t weighted_channels(const uint8_t* pixels, const int16_t* weights, int bits, int64_t count, uint8_t* out) {
  // Four pixels: the first two channels of each in the first lane, the third in the second.
  alignas(32) int8_t mask[32];
  for (int i = 0; i < 32; ++i) mask[i] = -1;
  for (int i = 0; i < 4; ++i) {
    for (int c = 0; c < 3; ++c) mask[c == 2 ? 16 + 4 * i : 4 * i + 2 * c] = static_cast<int8_t>(3 * i + c);
  }
  const __m256i spread = _mm256_load_si256(reinterpret_cast<const __m256i*>(mask));
  const __m256i factors = _mm256_inserti128_si256(pair(weights), _mm_set1_epi32(weights[2]), 1);
  const __m128i half = _mm_set1_epi32(1 << (bits - 1)), shift = _mm_cvtsi32_si128(bits);
  int64_t i = 0;
  // The last of 16 pixels reads 4 bytes beyond them.
  for (; i + 18 <= count; i += 16) {
    __m128i sums[4];
    for (int k = 0; k < 4; ++k) {
      const __m256i four = _mm256_broadcastsi128_si256(load_bytes(pixels + 3 * (i + 4 * k)));
      const __m256i products = _mm256_madd_epi16(_mm256_shuffle_epi8(four, spread), factors);
      const __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(products), _mm256_extracti128_si256(products, 1));
      sums[k] = _mm_srl_epi32(_mm_add_epi32(sum, half), shift);
    }
    const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(sums[0], sums[1]), _mm_packs_epi32(sums[2], sums[3]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bytes);
  }
  return i;
}

// ---- smoothing

int64_t weigh_bytes(const uint8_t* row, const int32_t* weights, int64_t taps, int64_t distance, int64_t count,
                    uint16_t* out) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    for (int64_t k = 0; k < taps; ++k) {
      const uint8_t* const tap = row + i + k * distance;
      const __m256i weight = _mm256_set1_epi16(static_cast<int16_t>(weights[k]));
      low = _mm256_add_epi16(low, _mm256_mullo_epi16(_mm256_cvtepu8_epi16(load_bytes(tap)), weight));
      high = _mm256_add_epi16(high, _mm256_mullo_epi16(_mm256_cvtepu8_epi16(load_bytes(tap + 16)), weight));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 16), high);
  }
  return i;
}

// Words lose 2^15, so that they have a sign and pairs can be multiplied; weights add up to 256, so
// the sums lose 2^23.
int64_t weigh_words(const uint16_t* const* rows, const int32_t* weights, int64_t taps, int64_t count, uint8_t* out) {
  const __m256i sign = _mm256_set1_epi16(INT16_MIN);
  const __m256i start = _mm256_set1_epi32((1 << 23) + (1 << 15));
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m256i low = start, high = start;
    for (int64_t k = 0; k < taps; k += 2) {
      const bool both = k + 1 < taps;
      const auto* const second = reinterpret_cast<const int16_t*>(rows[both ? k + 1 : k] + i);
      const __m256i a = _mm256_xor_si256(load_words(reinterpret_cast<const int16_t*>(rows[k] + i)), sign);
      const __m256i b = _mm256_xor_si256(load_words(second), sign);
      const __m256i weight = _mm256_set1_epi32((both ? weights[k + 1] << 16 : 0) | weights[k]);
      low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));
    }
    const __m256i words = _mm256_packs_epi32(_mm256_srai_epi32(low, 16), _mm256_srai_epi32(high, 16));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bytes);
  }
  return i;
}

__m256i load_bytes32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

void exchange(__m256i& a, __m256i& b) {
  const __m256i low = _mm256_min_epu8(a, b);
  b = _mm256_max_epu8(a, b);
  a = low;
}

// The exchanges that sort nine numbers as far as the median needs.
__m256i median_of_nine(__m256i* v) {
  constexpr uint8_t kExchanges[19][2] = {{1, 2}, {4, 5}, {7, 8}, {0, 1}, {3, 4}, {6, 7}, {1, 2}, {4, 5}, {7, 8}, {0, 3},
                                         {5, 8}, {4, 7}, {3, 6}, {1, 4}, {2, 5}, {4, 7}, {4, 2}, {6, 4}, {4, 2}};
#pragma GCC unroll 19
  for (int i = 0; i < 19; ++i) exchange(v[kExchanges[i][0]], v[kExchanges[i][1]]);
  return v[4];
}

int64_t median_bytes(const uint8_t* const* rows, int64_t size, int64_t distance, int64_t count, uint8_t* out) {
  const __m256i enough = _mm256_set1_epi8(static_cast<int8_t>(size * size / 2 + 1));
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    if (size == 3) {
      __m256i nine[9];
      for (int64_t k = 0; k < 9; ++k) nine[k] = load_bytes32(rows[k / 3] + i + k % 3 * distance);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), median_of_nine(nine));
      continue;
    }
    __m256i found = _mm256_setzero_si256();
    for (int bit = 128; bit != 0; bit >>= 1) {
      const __m256i limit = _mm256_or_si256(found, _mm256_set1_epi8(static_cast<int8_t>(bit)));
      __m256i counts = _mm256_setzero_si256();
      for (int64_t r = 0; r < size; ++r) {
        const uint8_t* pixel = rows[r] + i;
        for (int64_t k = 0; k < size; ++k, pixel += distance) {
          const __m256i pixels = load_bytes32(pixel);
          counts = _mm256_sub_epi8(counts, _mm256_cmpeq_epi8(_mm256_max_epu8(pixels, limit), pixels));
        }
      }
      const __m256i is_enough = _mm256_cmpeq_epi8(_mm256_max_epu8(counts, enough), counts);
      found = _mm256_blendv_epi8(found, limit, is_enough);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), found);
  }
  return i;
}

// ---- Pillow's grey and blending

// Per lane: 16-bit pairs of the channels (first, second) of four pixels.
__m256i channel_pairs(int first, int second) {
  alignas(32) int8_t mask[32];
  for (int i = 0; i < 32; ++i) mask[i] = -1;
  for (int pixel = 0; pixel < 8; ++pixel) {
    mask[4 * pixel] = static_cast<int8_t>(3 * (pixel % 4) + first);
    mask[4 * pixel + 2] = static_cast<int8_t>(3 * (pixel % 4) + second);
  }
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(mask));
}

// Half of green's weight does not fit into 16 bits, so green is in both pairs.
int64_t grey_pixels(const uint8_t* pixels, int64_t count, uint8_t* out) {
  const __m256i red_green = channel_pairs(0, 1), green_blue = channel_pairs(1, 2);
  const __m256i upper = _mm256_set1_epi32(19235 << 16 | 19595), lower = _mm256_set1_epi32(7471 << 16 | 19235);
  const __m256i half = _mm256_set1_epi32(0x8000);
  int64_t x = 0;
  // A load reads four bytes more than four pixels.
  for (; x + 8 + 2 <= count; x += 8) {
    const uint8_t* const p = pixels + 3 * x;
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(load_bytes(p)), load_bytes(p + 12), 1);
    const __m256i sums = _mm256_add_epi32(_mm256_madd_epi16(_mm256_shuffle_epi8(bytes, red_green), upper),
                                          _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, green_blue), lower));
    const __m256i greys = _mm256_srli_epi32(_mm256_add_epi32(sums, half), 16);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(greys), _mm256_extracti128_si256(greys, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + x), _mm_packus_epi16(words, words));
  }
  return x;
}

// Eight bytes each.
__m128i blended(__m256i others, __m128i bytes, __m256 factor) {
  const __m256i difference = _mm256_sub_epi32(_mm256_cvtepu8_epi32(bytes), others);
  const __m256 product = _mm256_mul_ps(factor, _mm256_cvtepi32_ps(difference));
  const __m256 sum = _mm256_add_ps(_mm256_cvtepi32_ps(others), product);
  // Larger sums would not fit into 32 bits.
  const __m256i values = _mm256_cvttps_epi32(_mm256_min_ps(sum, _mm256_set1_ps(255)));
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  return _mm_packus_epi16(words, words);
}

int64_t blend_constant(uint8_t other, const uint8_t* bytes, float factor, int64_t count, uint8_t* out) {
  const __m256i others = _mm256_set1_epi32(other);
  const __m256 factors = _mm256_set1_ps(factor);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + i));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), blended(others, eight, factors));
  }
  return i;
}

int64_t blend_grey(const uint8_t* others, const uint8_t* pixels, float factor, int64_t count, uint8_t* out) {
  const __m256 factors = _mm256_set1_ps(factor);
  const __m128i thrice[3] = {_mm_setr_epi8(0, 0, 0, 1, 1, 1, 2, 2, -1, -1, -1, -1, -1, -1, -1, -1),
                             _mm_setr_epi8(2, 3, 3, 3, 4, 4, 4, 5, -1, -1, -1, -1, -1, -1, -1, -1),
                             _mm_setr_epi8(5, 5, 6, 6, 6, 7, 7, 7, -1, -1, -1, -1, -1, -1, -1, -1)};
  int64_t x = 0;
  for (; x + 8 <= count; x += 8) {
    const __m128i greys = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(others + x));
    for (int64_t part = 0; part < 3; ++part) {
      const int64_t at = 3 * x + 8 * part;
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixels + at));
      const __m256i repeated = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(greys, thrice[part]));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + at), blended(repeated, eight, factors));
    }
  }
  return x;
}

}  // namespace

const RowKernels& row_kernels_avx2() {
  static constexpr RowKernels kKernels{linear_columns_of,
                                       linear_rows,
                                       filter_columns_of,
                                       filter_rows,
                                       bilinear_pixels_of,
                                       perspective_places,
                                       double_pixels_of<Bilinear>,
                                       double_pixels_of<Bicubic>,
                                       weighted_channels,
                                       weigh_bytes,
                                       weigh_words,
                                       median_bytes,
                                       grey_pixels,
                                       blend_constant,
                                       blend_grey};
  return kKernels;
}

}  // namespace hetero::backend
