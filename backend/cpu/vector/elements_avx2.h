// Loaders for AVX2: they turn blocks of elements into vectors of floats.
//
// matvec_kernel.h and panel_kernel.h say what a loader has. Only files that are compiled for AVX2
// include this header; each has types of its own.

#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/vector/vector_avx2.h"

namespace hetero::backend {
namespace {

// The end of a row goes through memory of a whole block.
template <typename L>
void load_copied(const typename L::Stored* p, int count, Vector& low, Vector& high) {
  typename L::Stored block[2 * Vector::kWidth] = {};
  for (int i = 0; i < count; ++i) block[i] = p[i];
  L::load(block, low, high);
}

struct Float32 {
  using Stored = float;
  static void load(const float* p, Vector& low, Vector& high) {
    low.v = _mm256_loadu_ps(p);
    high.v = _mm256_loadu_ps(p + 8);
  }
  static void load_part(const float* p, int count, Vector& low, Vector& high) {
    low = Vector::load_first(p, count);
    high = Vector::load_first(p + 8, count - 8);
  }
  static void narrow(Vector low, Vector high, float* p) {
    low.store(p);
    high.store(p + 8);
  }
  static Vector load_one(const float* p) { return Vector::load(p); }
  static void narrow_one(Vector one, float* p) { one.store(p); }
};

// A bfloat16 is the upper half of a float: the even elements, then the odd ones.
struct Bfloat16 {
  using Stored = uint16_t;
  static constexpr bool kSplits = true;
  static void load(const uint16_t* p, Vector& even, Vector& odd) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even.v = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    odd.v = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static void load_part(const uint16_t* p, int count, Vector& even, Vector& odd) {
    load_copied<Bfloat16>(p, count, even, odd);
  }
};

__m128i load_halves(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// A 2-byte element that L::widen makes a float.
template <typename L>
struct Halves {
  using Stored = uint16_t;
  static void load(const uint16_t* p, Vector& low, Vector& high) {
    low.v = L::widen(load_halves(p));
    high.v = L::widen(load_halves(p + 8));
  }
  static void load_part(const uint16_t* p, int count, Vector& low, Vector& high) {
    load_copied<L>(p, count, low, high);
  }
};

struct Bfloat16InOrder : Halves<Bfloat16InOrder> {
  static __m256 widen(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  // To nearest, ties to even; a NaN keeps its upper half, made quiet.
  static __m256i narrowed(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  }
  static void narrow(Vector low, Vector high, uint16_t* p) {
    // Packing works within halves of the vector, so the middle quarters change places.
    const __m256i packed = _mm256_packus_epi32(narrowed(low.v), narrowed(high.v));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
};

struct Float16 : Halves<Float16> {
  static __m256 widen(__m128i halves) { return _mm256_cvtph_ps(halves); }
  static void narrow(Vector low, Vector high, uint16_t* p) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(low.v, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(high.v, _MM_FROUND_TO_NEAREST_INT));
  }
};

// A 1-byte element that L::widen makes a float.
template <typename L, typename S>
struct Bytes {
  using Stored = S;
  static __m128i load_bytes(const S* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
  static void load(const S* p, Vector& low, Vector& high) {
    low.v = L::widen(load_bytes(p));
    high.v = L::widen(load_bytes(p + 8));
  }
  static void load_part(const S* p, int count, Vector& low, Vector& high) { load_copied<L>(p, count, low, high); }
};

struct Int8 : Bytes<Int8, int8_t> {
  static __m256 widen(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }
};

// With its bits moved, a float8 e4m3 is the float16 of a 256th of its number; NaN is apart.
struct Float8 : Bytes<Float8, uint8_t> {
  static __m256 widen(__m128i bytes) {
    const __m128i wide = _mm_cvtepu8_epi16(bytes);
    const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
    const __m128i moved = _mm_srai_epi16(_mm_slli_epi16(wide, 8), 1);
    const __m128i half = _mm_or_si128(_mm_and_si128(moved, _mm_set1_epi16(int16_t(0xbfff))), nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
  }
};

}  // namespace
}  // namespace hetero::backend
