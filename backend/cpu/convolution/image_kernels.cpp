#include "backend/cpu/convolution/image_kernels.h"

namespace hetero::backend {

const ImageKernels& image_kernels(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return image_kernels_avx512();
  if (set == InstructionSet::kAvx2) return image_kernels_avx2();
#endif
  (void)set;
  return kImageKernels;
}

}  // namespace hetero::backend
