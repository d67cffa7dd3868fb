// Compiled for the instructions of elements_avx512.h; called only where the processor has them. See
// panel_kernel.h.

#include "backend/cpu/kernels/panel_kernel.h"

#include "backend/cpu/vector/elements_avx512.h"

namespace hetero::backend {
namespace {

// Bfloat16 in pairs of k, as for the processor's own instruction, but multiplied as floats: one
// instruction makes a vector of floats of the lower halves, or of the upper ones.
struct SplitPairs {
  using V = Vector;
  using X = float;
  using Stored = uint16_t;
  static constexpr int kTerms = 2;
  static constexpr int kNumbers = 2;
  template <int number>
  static void load(const uint16_t* w, V& low, V& high) {
    low = half<number>(_mm512_loadu_si512(w));
    high = half<number>(_mm512_loadu_si512(w + 32));
  }
  template <int number>
  static V half(__m512i pairs) {
    V even, odd;
    Bfloat16::split(pairs, even, odd);
    return number == 0 ? even : odd;
  }
  static V share(const char* x) { return V::broadcast(reinterpret_cast<const float*>(x)); }
  static V multiply_add(V x, V w, V sum) { return V::fma(x, w, sum); }
  static void narrow(V low, V high, uint16_t* y) { Bfloat16InOrder::narrow(low, high, y); }
};

}  // namespace

const PanelKernels& panel_kernels_avx512(int element) {
  static constexpr PanelKernels kKernels[] = {make_panel_kernels<FloatSteps<Vector, Float32>>(),
                                              make_panel_kernels<SplitPairs>(),
                                              make_panel_kernels<FloatSteps<Vector, Float16>>()};
  return kKernels[element];
}

}  // namespace hetero::backend
