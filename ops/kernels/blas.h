// The BLAS that torch brings or was linked with.
//
// Thread safety: any thread. On a thread of a parallel region a product stays on it.

#pragma once

#include "backend/cpu/kernels/gemm.h"

namespace hetero::ops {

// Whether sgemm() may be called: torch without LAPACK has no BLAS.
bool has_sgemm();
void sgemm(const backend::Gemm& call);

}  // namespace hetero::ops
