// Compiled for AVX2, FMA and F16C; called only where the processor has them. See
// depthwise_kernel.h.

#include "backend/cpu/convolution/depthwise_kernel.h"

#include "backend/cpu/vector/elements_avx2.h"

namespace hetero::backend {

const DepthwiseKernels& depthwise_avx2() {
  static constexpr DepthwiseKernels kKernels =
      with_rows<Vector, Float32>(make_depthwise_kernels<Vector, Float32, Bfloat16InOrder, Float16>());
  return kKernels;
}

}  // namespace hetero::backend
