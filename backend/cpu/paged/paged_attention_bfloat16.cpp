// Compiled for AVX-512 with its bfloat16 instructions; called only where the processor has them.
// See paged_attention_kernel.h.

#include "backend/cpu/paged/paged_attention_kernel.h"
#include "backend/cpu/vector/elements_avx512.h"

namespace hetero::backend {
namespace {

// Queries and keys are bfloat16, and an instruction multiplies and adds 32 of each. It takes
// subnormal numbers for 0.
struct PairProducts {
  static constexpr int64_t kBlock = 32;

  template <int M, int T>
  static void multiply(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, int token,
                       const float* query, float* scores) {
    const int64_t bytes = part.head_size * static_cast<int64_t>(sizeof(uint16_t));
    const unsigned char* rows[T];
    Vector sums[T * M];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) rows[t] = piece.keys[token + t];
#pragma GCC unroll 32
    for (int i = 0; i < T * M; ++i) sums[i] = Vector::zero();
    const auto step = [&](int64_t i, auto&& load) __attribute__((always_inline)) {
      __m512i keys[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) keys[t] = load(rows[t] + 2 * i);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const __m512 x = Vector::keep(Vector::load(query + m * part.stride + i / 2)).v;
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          sums[t * M + m].v =
              _mm512_dpbf16_ps(sums[t * M + m].v, reinterpret_cast<__m512bh>(keys[t]), reinterpret_cast<__m512bh>(x));
        }
      }
    };
    int64_t i = 0;
    int fetched = 0;
    for (; i + kBlock <= part.head_size; i += kBlock) {
      if (fetched < T) fetch<Vector>(next.keys[token + fetched++], bytes);
      step(
          i, [](const unsigned char* p) __attribute__((always_inline)) { return _mm512_loadu_si512(p); });
    }
    if (i < part.head_size) {
      const auto first = static_cast<__mmask32>((uint32_t{1} << (part.head_size - i)) - 1);
      step(
          i, [first](const unsigned char* p)
                 __attribute__((always_inline)) { return _mm512_maskz_loadu_epi16(first, p); });
    }
    for (; fetched < T; ++fetched) fetch<Vector>(next.keys[token + fetched], bytes);
    store_scores<Vector, M, T>(sums, token, scores);
  }
};

}  // namespace

PagedKernel paged_pairs() { return &paged_parts<Vector, Bfloat16, PairProducts>; }

}  // namespace hetero::backend
