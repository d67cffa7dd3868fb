// Compiled for AVX-512 with its bfloat16 instructions; called only where the processor has them.
// See panel_kernel.h.

#include "backend/cpu/kernels/panel_kernel.h"
#include "backend/cpu/vector/elements_avx512.h"

namespace hetero::backend {
namespace {

// A step is two elements of k. The instruction takes subnormal numbers for 0, as those of oneDNN
// do.
struct Pairs {
  using V = Vector;
  using X = uint32_t;
  using Stored = uint16_t;
  static constexpr int kTerms = 2;
  static constexpr int kNumbers = 1;
  template <int>
  static void load(const uint16_t* w, V& low, V& high) {
    low.v = _mm512_loadu_ps(w);
    high.v = _mm512_loadu_ps(w + 32);
  }
  // Two elements may begin anywhere.
  static V share(const char* x) {
    int pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return {_mm512_castsi512_ps(_mm512_set1_epi32(pair))};
  }
  static V multiply_add(V x, V w, V sum) {
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(x.v), reinterpret_cast<__m512bh>(w.v))};
  }
  static void narrow(V low, V high, uint16_t* y) { Bfloat16InOrder::narrow(low, high, y); }
};

}  // namespace

const PanelKernels& panel_kernels_bfloat16() {
  static constexpr PanelKernels kKernels = make_panel_kernels<Pairs>();
  return kKernels;
}

}  // namespace hetero::backend
