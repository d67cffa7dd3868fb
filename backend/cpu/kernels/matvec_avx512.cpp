// Compiled for AVX-512 (F, BW, VL, DQ), FMA and F16C; called only where the processor has them. See
// matvec_kernel.h.

#include "backend/cpu/kernels/matvec_kernel.h"
#include "backend/cpu/vector/elements_avx512.h"

namespace hetero::backend {
namespace {

constexpr MatvecTableHolder kTable = make_matvec_table<Vector, Float32, Bfloat16, Bfloat16InOrder, Float16>();

}  // namespace

const MatvecTable& matvec_avx512() { return kTable.kernels; }

}  // namespace hetero::backend
