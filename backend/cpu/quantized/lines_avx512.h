// What the two sets of AVX-512 have in common, for kernel.h.
//
// Only files that are compiled for AVX-512 include this header; each has a type of its own.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace hetero::backend {
namespace {

struct Avx512Lines {
  using Line = __m512i;
  using Sums = __m512i;
  using Floats = __m512;
  static constexpr int kSums = 24;

  static Line whole(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Line low(const uint8_t* p) { return _mm512_and_si512(whole(p), _mm512_set1_epi8(15)); }
  static Line high(const uint8_t* p) { return _mm512_and_si512(_mm512_srli_epi16(whole(p), 4), _mm512_set1_epi8(15)); }

  static Sums zero() { return _mm512_setzero_si512(); }
  static Sums all(int value) { return _mm512_set1_epi32(value); }
  static Sums load_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Sums add(Sums a, Sums b) { return _mm512_add_epi32(a, b); }
  static Sums join(Sums high, Sums low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
  static Sums less(Sums sums, Sums zeros, int32_t number) {
    return _mm512_sub_epi32(sums, _mm512_mullo_epi32(zeros, _mm512_set1_epi32(number)));
  }
  static Sums less(Sums sums, uint32_t number) {
    return _mm512_sub_epi32(sums, _mm512_set1_epi32(static_cast<int32_t>(number)));
  }
  static int32_t total(Sums sums) { return _mm512_reduce_add_epi32(sums); }

  static Floats none() { return _mm512_setzero_ps(); }
  static Floats of(float value) { return _mm512_set1_ps(value); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static Floats load_bfloat16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(p)), 16));
  }
  static Floats load_float16(const uint16_t* p) { return _mm512_cvtph_ps(load_halves(p)); }
  static void store(Floats floats, float* p) { _mm512_storeu_ps(p, floats); }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats from(Sums sums) { return _mm512_cvtepi32_ps(sums); }

  static uint32_t largest(const float* p, int64_t count) {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < count; i += 16) {
      most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(p + i)), mask));
    }
    return _mm512_reduce_max_epu32(most);
  }
  template <int P>
  static Sums place(const float* p, float factor, int8_t* to) {
    const __m512i numbers = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(p), _mm512_set1_ps(factor)));
    if constexpr (P == 1) {
      write(to, _mm512_cvtepi32_epi8(numbers));
    } else {
      const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(numbers, _mm512_set1_epi32(128)), 8);
      write(to, _mm512_cvtepi32_epi8(upper));
      // The lowest byte is what is left, between -128 and 127.
      write(to + 64, _mm512_cvtepi32_epi8(numbers));
    }
    return numbers;
  }

 private:
  static __m256i load_halves(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void write(int8_t* to, __m128i bytes) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes); }
};

}  // namespace
}  // namespace hetero::backend
