// Loaders for AVX-512: they turn blocks of elements into vectors of floats.
//
// matvec_kernel.h and panel_kernel.h say what a loader has. Only files that are compiled for
// AVX-512 include this header; each has types of its own.

#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/vector/vector_avx512.h"

namespace hetero::backend {
namespace {

__mmask16 first_lanes(int count) {
  return count <= 0 ? __mmask16(0) : count >= 16 ? __mmask16(0xffff) : __mmask16((1u << count) - 1);
}

struct Float32 {
  using Stored = float;
  static void load(const float* p, Vector& low, Vector& high) {
    low.v = _mm512_loadu_ps(p);
    high.v = _mm512_loadu_ps(p + 16);
  }
  static void load_part(const float* p, int count, Vector& low, Vector& high) {
    low.v = _mm512_maskz_loadu_ps(first_lanes(count), p);
    high.v = _mm512_maskz_loadu_ps(first_lanes(count - 16), p + 16);
  }
  static void narrow(Vector low, Vector high, float* p) {
    low.store(p);
    high.store(p + 16);
  }
  static Vector load_one(const float* p) { return Vector::load(p); }
  static void narrow_one(Vector one, float* p) { one.store(p); }
};

// A bfloat16 is the upper half of a float: the even elements, then the odd ones.
struct Bfloat16 {
  using Stored = uint16_t;
  static constexpr bool kSplits = true;
  static void split(__m512i pairs, Vector& even, Vector& odd) {
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static void load(const uint16_t* p, Vector& even, Vector& odd) { split(_mm512_loadu_si512(p), even, odd); }
  static void load_part(const uint16_t* p, int count, Vector& even, Vector& odd) {
    split(_mm512_maskz_loadu_epi16((__mmask32(1) << count) - 1, p), even, odd);
  }
};

// Sixteen 2-byte elements, and zeros behind the first `count` of them.
__m256i load_halves(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
__m256i load_halves(const uint16_t* p, int count) { return _mm256_maskz_loadu_epi16(first_lanes(count), p); }

// A 2-byte element that L::widen makes a float.
template <typename L>
struct Halves {
  using Stored = uint16_t;
  static void load(const uint16_t* p, Vector& low, Vector& high) {
    low.v = L::widen(load_halves(p));
    high.v = L::widen(load_halves(p + 16));
  }
  static void load_part(const uint16_t* p, int count, Vector& low, Vector& high) {
    low.v = L::widen(load_halves(p, count));
    high.v = L::widen(load_halves(p + 16, count - 16));
  }
  static void narrow(Vector low, Vector high, uint16_t* p) {
    narrow_one(low, p);
    narrow_one(high, p + 16);
  }
  static Vector load_one(const uint16_t* p) { return {L::widen(load_halves(p))}; }
  static void narrow_one(Vector one, uint16_t* p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), L::narrowed(one.v));
  }
};

struct Bfloat16InOrder : Halves<Bfloat16InOrder> {
  static __m512 widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  // To nearest, ties to even; a NaN keeps its upper half, made quiet.
  static __m256i narrowed(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
  }
};

struct Float16 : Halves<Float16> {
  static __m512 widen(__m256i halves) { return _mm512_cvtph_ps(halves); }
  static __m256i narrowed(__m512 v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
};

// Sixteen 1-byte elements, and zeros behind the first `count` of them.
inline __m128i load_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m128i load_bytes(const void* p, int count) { return _mm_maskz_loadu_epi8(first_lanes(count), p); }

// A 1-byte element that L::widen makes a float.
template <typename L, typename S>
struct Bytes {
  using Stored = S;
  static void load(const S* p, Vector& low, Vector& high) {
    low.v = L::widen(load_bytes(p));
    high.v = L::widen(load_bytes(p + 16));
  }
  static void load_part(const S* p, int count, Vector& low, Vector& high) {
    low.v = L::widen(load_bytes(p, count));
    high.v = L::widen(load_bytes(p + 16, count - 16));
  }
};

struct Int8 : Bytes<Int8, int8_t> {
  static __m512 widen(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
};

// With its bits moved, a float8 e4m3 is the float16 of a 256th of its number; NaN is apart.
struct Float8 {
  using Stored = uint8_t;
  static void widen(__m256i bytes, Vector& low, Vector& high) {
    const __m256i largest = _mm256_set1_epi8(0x7f);
    const __mmask32 is_nan = _mm256_cmpeq_epi8_mask(_mm256_and_si256(bytes, largest), largest);
    const __m512i sign_first = _mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 8);
    const __m512i half = _mm512_and_si512(_mm512_srai_epi16(sign_first, 1), _mm512_set1_epi16(int16_t(0xbfff)));
    const __m512i known = _mm512_mask_mov_epi16(half, is_nan, _mm512_set1_epi16(0x7e00));
    const __m512 unit = _mm512_set1_ps(256.0f);
    low.v = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(known)), unit);
    high.v = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(known, 1)), unit);
  }
  static void load(const uint8_t* p, Vector& low, Vector& high) {
    widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), low, high);
  }
  static void load_part(const uint8_t* p, int count, Vector& low, Vector& high) {
    widen(_mm256_maskz_loadu_epi8((__mmask32(1) << count) - 1, p), low, high);
  }
};

}  // namespace
}  // namespace hetero::backend
