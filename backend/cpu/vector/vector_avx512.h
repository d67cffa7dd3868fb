// Vector for AVX-512 F, BW, VL and DQ: a vector of floats, for attention_kernel.h and
// matvec_kernel.h.
//
// Only files that are compiled for these instructions include it; each has a type of its own.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace hetero::backend {
namespace {

struct Vector {
  static constexpr int kWidth = 16;
  static constexpr int kRegisters = 32;
  __m512 v;

  static __mmask16 first_mask(int n) { return static_cast<__mmask16>((1u << n) - 1); }

  static Vector zero() { return {_mm512_setzero_ps()}; }
  static Vector of(float value) { return {_mm512_set1_ps(value)}; }
  static Vector broadcast(const float* p) { return {_mm512_set1_ps(*p)}; }
  static Vector load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vector load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_mask(n), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_first(float* p, int n) const { _mm512_mask_storeu_ps(p, first_mask(n), v); }
  static Vector first(Vector a, int n, Vector other) { return {_mm512_mask_blend_ps(first_mask(n), other.v, a.v)}; }
  static Vector keep(Vector a) {
    asm("" : "+v"(a.v));
    return a;
  }

  static Vector add(Vector a, Vector b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vector sub(Vector a, Vector b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static Vector mul(Vector a, Vector b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vector fma(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vector max(Vector a, Vector b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vector min(Vector a, Vector b) { return {_mm512_min_ps(a.v, b.v)}; }
  float sum() const { return _mm512_reduce_add_ps(v); }
  float largest() const { return _mm512_reduce_max_ps(v); }

  static Vector exponent(Vector a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))}; }
  static Vector zero_below(Vector a, Vector x, float limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ), a.v)};
  }

  static Vector quads(const float* p, int64_t stride) {
    __m512 four = _mm512_castps128_ps512(_mm_loadu_ps(p));
    four = _mm512_insertf32x4(four, _mm_loadu_ps(p + 4 * stride), 1);
    four = _mm512_insertf32x4(four, _mm_loadu_ps(p + 8 * stride), 2);
    return {_mm512_insertf32x4(four, _mm_loadu_ps(p + 12 * stride), 3)};
  }
  static void transpose(Vector& a, Vector& b, Vector& c, Vector& d) {
    const __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a.v, b.v));
    const __m512d ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a.v, b.v));
    const __m512d cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(c.v, d.v));
    const __m512d cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(c.v, d.v));
    a.v = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low));
    b.v = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low));
    c.v = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high));
    d.v = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high));
  }

  // Stores an element of each in turn.
  static void interleave(Vector a, Vector b, float* p) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(a.v, low, b.v));
    _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(a.v, high, b.v));
  }

  // The sums of four vectors.
  static void sums(Vector a, Vector b, Vector c, Vector d, float* out) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
    // In each quarter one partial sum of a, b, c and d.
    const __m512 quarters = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                                          _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
};

}  // namespace
}  // namespace hetero::backend
