// Compiled for AVX-512 F, BW, VL and DQ; called only where the processor has them. See
// attention_kernel.h.

#include <immintrin.h>

#include "backend/cpu/kernels/attention_kernel.h"
#include "backend/cpu/vector/vector_avx512.h"

namespace hetero::backend {
namespace {

constexpr AttentionKernels kKernels = make_attention_kernels<Vector>();

}  // namespace

const AttentionKernels& attention_avx512() { return kKernels; }

}  // namespace hetero::backend
