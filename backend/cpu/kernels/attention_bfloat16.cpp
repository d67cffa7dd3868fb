// Compiled for AVX-512 with its bfloat16 instructions; called only where the processor has them.
// See attention_kernel.h.

#include "backend/cpu/kernels/attention_kernel.h"
#include "backend/cpu/vector/elements_avx512.h"

namespace hetero::backend {
namespace {

// Two bfloat16 in the place of a float: a product of such matrices has half the steps. The
// instruction takes subnormal numbers for 0.
struct Pairs {
  static constexpr int kWidth = Vector::kWidth;
  static constexpr int kRegisters = Vector::kRegisters;
  __m512 v;

  static Pairs zero() { return {_mm512_setzero_ps()}; }
  static Pairs broadcast(const float* p) { return {_mm512_set1_ps(*p)}; }
  static Pairs load(const float* p) { return {_mm512_loadu_ps(p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  static Pairs keep(Pairs a) {
    asm("" : "+v"(a.v));
    return a;
  }
  static Pairs fma(Pairs a, Pairs b, Pairs c) {
    return {_mm512_dpbf16_ps(c.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
  }
};

// Of two rows, an element of each side by side.
__m512i interleave(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

void pack_pairs(const AttentionPairPacking& packing) {
  const int64_t pairs = (packing.rows + 1) / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const uint16_t* const even = packing.from + 2 * pair * packing.stride;
    const bool alone = 2 * pair + 1 == packing.rows;
    for (int64_t first = 0; first < packing.columns; first += panel_columns<Pairs>()) {
      const int64_t width = panel_width<Pairs>(packing.columns, first);
      float* const to = packing.to + first * pairs + pair * width;
      for (int64_t i = 0; i < width; i += Pairs::kWidth) {
        const int64_t at = first + i;
        const int left = static_cast<int>(packing.columns - at);
        const __m256i odd = alone ? _mm256_setzero_si256() : load_halves(even + packing.stride + at, left);
        _mm512_storeu_si512(to + i, interleave(load_halves(even + at, left), odd));
      }
    }
  }
}

void narrow_rows(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; i += Pairs::kWidth) {
      const __m512 floats = _mm512_loadu_ps(from + row * from_stride + i);
      const __m256i halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(floats));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + row * to_stride + i / 2), halves);
    }
  }
}

constexpr AttentionPairKernels kKernels = {&pack_pairs, &narrow_rows, &multiply_in_order<Pairs, false>};

}  // namespace

const AttentionPairKernels& attention_pairs() { return kKernels; }

}  // namespace hetero::backend
