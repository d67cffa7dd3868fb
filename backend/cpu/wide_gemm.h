// Matrix products of 2-byte floats by way of float32: y = x * w^T + bias, where w becomes float32 a block at a time.
//
// On a processor whose float32 product is faster than its 2-byte one, converting pays: a block of w is converted into the second-level cache of
// the thread that multiplies it, and memory is read only once, in its 2-byte form. The float32 product itself comes from outside (ops/ gives
// that of torch's BLAS). Sums are kept in float32 and rounded once.
//
// Several products of one x may be one call, as in matvec.h: x becomes float32 once and the threads start once, over the outputs of all.
//
// Beside the results, each thread that helps keeps about a megabyte from call to call, and one that calls as many floats as kWideRows rows of x have.
//
// Thread safety: any thread.

#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/gemm.h"
#include "backend/cpu/matvec.h"

namespace hetero::backend {

inline constexpr int64_t kWideRows = 512;

// As matvec, with any m. How a call's outputs are cut into products does not depend on the calls beside it, so its bits do not either, whatever
// `sgemm` makes of a shape. REQUIRES: same_x for any two calls; !columns; a y overlaps nothing that is read, and no other y.
void wide_gemm(std::span<const Matvec> calls, Sgemm sgemm);
inline void wide_gemm(const Matvec& call, Sgemm sgemm) { wide_gemm(std::span(&call, 1), sgemm); }

}  // namespace hetero::backend
