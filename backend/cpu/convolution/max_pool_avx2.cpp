// Compiled for the instructions of vector_avx2.h; called only where the processor has them.

#include "backend/cpu/convolution/max_pool_kernel.h"

namespace hetero::backend {

const PoolKernels& max_pool_avx2() { return kPoolKernels; }

}  // namespace hetero::backend
