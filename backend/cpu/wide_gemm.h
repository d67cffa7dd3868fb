// Matrix products of 2-byte floats by way of float32: y = x * w^T + bias, where w becomes float32 a block at a time.
//
// On a processor whose float32 product is faster than its 2-byte one, converting pays: a block of w is converted into the second-level cache of
// the thread that multiplies it, and memory is read only once, in its 2-byte form. The float32 product itself comes from outside (ops/ gives
// that of torch's BLAS). Sums are kept in float32 and rounded once.
//
// Beside the result, memory is taken for some hundred kilobytes per thread and for kWideRows rows of x.
//
// Thread safety: any thread.

#pragma once

#include <cstdint>

#include "backend/cpu/gemm.h"
#include "backend/cpu/matvec.h"

namespace hetero::backend {

inline constexpr int64_t kWideRows = 512;

// `call` as for matvec, with any m. REQUIRES: !call.columns, and y overlaps nothing that is read.
void wide_gemm(const Matvec& call, Sgemm sgemm);

}  // namespace hetero::backend
