// Compiled for AVX2 and FMA; called only where the processor has them. See attention_kernel.h.

#include <immintrin.h>

#include "backend/cpu/kernels/attention_kernel.h"
#include "backend/cpu/vector/vector_avx2.h"

namespace hetero::backend {
namespace {

constexpr AttentionKernels kKernels = make_attention_kernels<Vector>();

}  // namespace

const AttentionKernels& attention_avx2() { return kKernels; }

}  // namespace hetero::backend
