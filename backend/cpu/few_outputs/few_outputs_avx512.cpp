// Compiled for the instructions of vector_avx512.h; called only where the processor has them. See
// few_outputs_kernel.h.

#include "backend/cpu/few_outputs/few_outputs_kernel.h"

#include "backend/cpu/vector/vector_avx512.h"

namespace hetero::backend {

const DotKernels& dot_kernels_avx512() {
  static constexpr DotKernels kKernels = make_dot_kernels<Vector>();
  return kKernels;
}

}  // namespace hetero::backend
