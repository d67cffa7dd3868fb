// The BLAS that torch brings or was linked with.
//
// Thread safety: any thread. A product that is called in a parallel region stays on its thread.

#pragma once

#include "backend/cpu/kernels/gemm.h"

namespace hetero::ops {

// Whether sgemm() may be called: torch without LAPACK has no BLAS.
bool has_sgemm();
void sgemm(const backend::Gemm& call);

}  // namespace hetero::ops
