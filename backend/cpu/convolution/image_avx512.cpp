// Compiled for the instructions of vector_avx512.h; called only where the processor has them.

#include "backend/cpu/convolution/image_kernel.h"

namespace hetero::backend {

const ImageKernels& image_kernels_avx512() { return kImageKernels; }

}  // namespace hetero::backend
