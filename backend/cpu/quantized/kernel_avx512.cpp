// Compiled for AVX-512 (F, BW, VL, DQ); called only where the processor has them. See
// kernel.h.

#include "backend/cpu/quantized/kernel.h"
#include "backend/cpu/quantized/lines_avx512.h"

namespace hetero::backend {
namespace {

// Products of 8 bits saturate in pairs. So bytes become 16 bits: those with an even place, and
// those with an odd one.
struct Avx512 : Avx512Lines {
  struct Four {
    __m512i even, odd;
  };
  static constexpr int kSums = 12;
  static Four share(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    const __m512i all = _mm512_set1_epi32(four);
    return {_mm512_srai_epi16(_mm512_slli_epi16(all, 8), 8), _mm512_srai_epi16(all, 8)};
  }
  static Sums dot(Sums sums, Line line, Four four) {
    const __m512i even = _mm512_and_si512(line, _mm512_set1_epi16(255));
    const __m512i odd = _mm512_srli_epi16(line, 8);
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(even, four.even));
    return _mm512_add_epi32(sums, _mm512_madd_epi16(odd, four.odd));
  }
};

}  // namespace

const QuantizedKernels& quantized_kernels_avx512() {
  static constexpr QuantizedKernels kKernels = make_quantized_kernels<Avx512>();
  return kKernels;
}

}  // namespace hetero::backend
