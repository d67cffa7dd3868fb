// Compiled for the instructions of elements_avx2.h; called only where the processor has them. See panel_kernel.h.

#include "backend/cpu/panel_kernel.h"

#include "backend/cpu/elements_avx2.h"

namespace hetero::backend {

const PanelKernels& panel_kernels_avx2(int element) {
  static constexpr PanelKernels kKernels[] = {make_panel_kernels<FloatSteps<Vector, Float32>>(),
                                              make_panel_kernels<FloatSteps<Vector, Bfloat16InOrder>>(),
                                              make_panel_kernels<FloatSteps<Vector, Float16>>()};
  return kKernels[element];
}

}  // namespace hetero::backend
