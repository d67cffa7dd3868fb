// Compiled for AVX2, FMA and F16C; called only where the processor has them. See
// kernel.h.

#include <immintrin.h>

#include "backend/cpu/quantized/kernel.h"

namespace hetero::backend {
namespace {

// A line is two vectors. Products of 8 bits saturate in pairs. So bytes become 16 bits: those with
// an even place, and those with an odd one.
struct Avx2 {
  struct Pair {
    __m256i low, high;
  };
  using Line = Pair;
  using Sums = Pair;
  struct Floats {
    __m256 low, high;
  };
  struct Four {
    __m256i even, odd;
  };
  static constexpr int kSums = 4;

  static Line whole(const uint8_t* p) { return {load_bytes32(p), load_bytes32(p + 32)}; }
  static Line low(const uint8_t* p) {
    const __m256i mask = _mm256_set1_epi8(15);
    const Line line = whole(p);
    return {_mm256_and_si256(line.low, mask), _mm256_and_si256(line.high, mask)};
  }
  static Line high(const uint8_t* p) {
    const __m256i mask = _mm256_set1_epi8(15);
    const Line line = whole(p);
    return {_mm256_and_si256(_mm256_srli_epi16(line.low, 4), mask),
            _mm256_and_si256(_mm256_srli_epi16(line.high, 4), mask)};
  }
  static Four share(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    const __m256i all = _mm256_set1_epi32(four);
    return {_mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8), _mm256_srai_epi16(all, 8)};
  }
  static __m256i dot(__m256i sums, __m256i line, const Four& four) {
    const __m256i even = _mm256_and_si256(line, _mm256_set1_epi16(255));
    const __m256i odd = _mm256_srli_epi16(line, 8);
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(even, four.even));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(odd, four.odd));
  }
  static Sums dot(Sums sums, Line line, const Four& four) {
    return {dot(sums.low, line.low, four), dot(sums.high, line.high, four)};
  }

  static Sums zero() { return all(0); }
  static Sums all(int value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static Sums load_bytes(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static Sums add(Sums a, Sums b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  static Sums join(Sums high, Sums low) {
    return add({_mm256_slli_epi32(high.low, 8), _mm256_slli_epi32(high.high, 8)}, low);
  }
  static Sums less(Sums sums, Sums zeros, int32_t number) {
    const __m256i numbers = _mm256_set1_epi32(number);
    return {_mm256_sub_epi32(sums.low, _mm256_mullo_epi32(zeros.low, numbers)),
            _mm256_sub_epi32(sums.high, _mm256_mullo_epi32(zeros.high, numbers))};
  }
  static Sums less(Sums sums, uint32_t number) {
    const __m256i numbers = _mm256_set1_epi32(static_cast<int32_t>(number));
    return {_mm256_sub_epi32(sums.low, numbers), _mm256_sub_epi32(sums.high, numbers)};
  }
  static int32_t total(Sums sums) {
    const __m256i both = _mm256_add_epi32(sums.low, sums.high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
  }

  static Floats none() { return of(0); }
  static Floats of(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Floats load_bfloat16(const uint16_t* p) { return {widen_bfloat16(p), widen_bfloat16(p + 8)}; }
  static Floats load_float16(const uint16_t* p) {
    return {_mm256_cvtph_ps(load_halves(p)), _mm256_cvtph_ps(load_halves(p + 8))};
  }
  static void store(Floats floats, float* p) {
    _mm256_storeu_ps(p, floats.low);
    _mm256_storeu_ps(p + 8, floats.high);
  }
  static Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Floats from(Sums sums) { return {_mm256_cvtepi32_ps(sums.low), _mm256_cvtepi32_ps(sums.high)}; }

  static uint32_t largest(const float* p, int64_t count) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    for (int64_t i = 0; i < count; i += 8) {
      most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(p + i)), mask));
    }
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1))));
  }
  template <int P>
  static Sums place(const float* p, float factor, int8_t* to) {
    const __m256 factors = _mm256_set1_ps(factor);
    const Sums numbers = {_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p), factors)),
                          _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p + 8), factors))};
    if constexpr (P == 1) {
      write(to, numbers);
    } else {
      const __m256i half = _mm256_set1_epi32(128);
      write(to, {_mm256_srai_epi32(_mm256_add_epi32(numbers.low, half), 8),
                 _mm256_srai_epi32(_mm256_add_epi32(numbers.high, half), 8)});
      // The lowest byte is what is left, between -128 and 127.
      write(to + 64, numbers);
    }
    return numbers;
  }

 private:
  // The lowest bytes of sixteen numbers.
  static void write(int8_t* to, Sums numbers) {
    const __m256i lowest = _mm256_setr_epi32(0x0c080400, -1, -1, -1, 0x0c080400, -1, -1, -1);
    const auto eight = [&](__m256i half) {
      const __m256i bytes = _mm256_shuffle_epi8(half, lowest);
      return _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    };
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi64(eight(numbers.low), eight(numbers.high)));
  }
  static __m256i load_bytes32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static __m128i load_halves(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static __m256 widen_bfloat16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(p)), 16));
  }
};

}  // namespace

const QuantizedKernels& quantized_kernels_avx2() {
  static constexpr QuantizedKernels kKernels = make_quantized_kernels<Avx2>();
  return kKernels;
}

}  // namespace hetero::backend
