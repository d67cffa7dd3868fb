// Vector for AVX2 and FMA: a vector of floats, for attention_kernel.h and matvec_kernel.h.
//
// Only files that are compiled for these instructions include it; each has a type of its own.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace hetero::backend {
namespace {

struct Vector {
  static constexpr int kWidth = 8;
  static constexpr int kRegisters = 16;
  __m256 v;

  static __m256i first_mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static Vector zero() { return {_mm256_setzero_ps()}; }
  static Vector of(float value) { return {_mm256_set1_ps(value)}; }
  static Vector broadcast(const float* p) { return {_mm256_broadcast_ss(p)}; }
  static Vector load(const float* p) { return {_mm256_loadu_ps(p)}; }
  // The first n elements, and zeros; no other byte is touched.
  static Vector load_first(const float* p, int n) { return {_mm256_maskload_ps(p, first_mask(n))}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_first(float* p, int n) const { _mm256_maskstore_ps(p, first_mask(n), v); }
  // The first n elements of a, the others of `other`.
  static Vector first(Vector a, int n, Vector other) {
    return {_mm256_blendv_ps(other.v, a.v, _mm256_castsi256_ps(first_mask(n)))};
  }
  // The compiler forgets that a is in memory.
  static Vector keep(Vector a) {
    asm("" : "+x"(a.v));
    return a;
  }

  static Vector add(Vector a, Vector b) { return {_mm256_add_ps(a.v, b.v)}; }
  static Vector sub(Vector a, Vector b) { return {_mm256_sub_ps(a.v, b.v)}; }
  static Vector mul(Vector a, Vector b) { return {_mm256_mul_ps(a.v, b.v)}; }
  static Vector fma(Vector a, Vector b, Vector c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static Vector max(Vector a, Vector b) { return {_mm256_max_ps(a.v, b.v)}; }
  static Vector min(Vector a, Vector b) { return {_mm256_min_ps(a.v, b.v)}; }
  float sum() const {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  float largest() const {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  // The number whose exponent is in the lowest bits of a.
  static Vector exponent(Vector a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.v), 23))}; }
  // a where x is not less than the limit, else 0.
  static Vector zero_below(Vector a, Vector x, float limit) {
    return {_mm256_and_ps(a.v, _mm256_cmp_ps(x.v, _mm256_set1_ps(limit), _CMP_NLT_UQ))};
  }

  // Four floats of every fourth row.
  static Vector quads(const float* p, int64_t stride) {
    return {_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 4 * stride), 1)};
  }
  // Of four such vectors, which begin at rows one after another: a column each.
  static void transpose(Vector& a, Vector& b, Vector& c, Vector& d) {
    const __m256d ab_low = _mm256_castps_pd(_mm256_unpacklo_ps(a.v, b.v));
    const __m256d ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(a.v, b.v));
    const __m256d cd_low = _mm256_castps_pd(_mm256_unpacklo_ps(c.v, d.v));
    const __m256d cd_high = _mm256_castps_pd(_mm256_unpackhi_ps(c.v, d.v));
    a.v = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_low, cd_low));
    b.v = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_low, cd_low));
    c.v = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high));
    d.v = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high));
  }

  // Stores an element of each in turn.
  static void interleave(Vector a, Vector b, float* p) {
    const __m256 low = _mm256_unpacklo_ps(a.v, b.v);
    const __m256 high = _mm256_unpackhi_ps(a.v, b.v);
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }

  // The sums of four vectors.
  static void sums(Vector a, Vector b, Vector c, Vector d, float* out) {
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a.v, b.v), _mm256_unpackhi_ps(a.v, b.v));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c.v, d.v), _mm256_unpackhi_ps(c.v, d.v));
    // In each half one partial sum of a, b, c and d.
    const __m256 halves = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                                        _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
};

}  // namespace
}  // namespace hetero::backend
