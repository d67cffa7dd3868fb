// Compiled for AVX-512 F, BW, VL and DQ; called only where the processor has them. See
// paged_attention_kernel.h.

#include "backend/cpu/paged/paged_attention_kernel.h"
#include "backend/cpu/vector/elements_avx512.h"

namespace hetero::backend {
namespace {

constexpr PagedTableHolder kTable =
    make_paged_table<Vector, Float32, Bfloat16, Bfloat16InOrder, Float16, Int8, Float8>();

}  // namespace

const PagedTable& paged_avx512() { return kTable.kernels; }

}  // namespace hetero::backend
