// Compiled for the instructions of elements_avx512.h; called only where the processor has them. See
// panel_kernel.h.

#include "backend/cpu/kernels/panel_kernel.h"

#include "backend/cpu/vector/elements_avx512.h"

namespace hetero::backend {

const PanelKernels& panel_kernels_avx512(int element) {
  return float_panel_kernels<Vector, Float32, Bfloat16InOrder, Float16>(element);
}

}  // namespace hetero::backend
