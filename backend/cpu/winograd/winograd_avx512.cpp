// Compiled for the instructions of vector_avx512.h; called only where the processor has them. See
// winograd_kernel.h.

#include "backend/cpu/winograd/winograd_kernel.h"

#include "backend/cpu/vector/vector_avx512.h"

namespace hetero::backend {

const WinogradKernels& winograd_avx512() {
  static constexpr WinogradKernels kKernels = make_winograd_kernels<Vector>();
  return kKernels;
}

}  // namespace hetero::backend
