#include "ops/kernels/blas.h"

#include <dlfcn.h>

namespace hetero::ops {
namespace {

using FortranSgemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                              const int*, const float*, const int*, const float*, float*, const int*);
FortranSgemm fortran_sgemm() {
  static const auto function = reinterpret_cast<FortranSgemm>(dlsym(RTLD_DEFAULT, "sgemm_"));
  return function;
}

}  // namespace

bool has_sgemm() { return fortran_sgemm() != nullptr; }

// Column-major BLAS sees our row-major c as its transpose, n by m.
void sgemm(const backend::Gemm& call) {
  const int rows = static_cast<int>(call.n), columns = static_cast<int>(call.m), depth = static_cast<int>(call.k);
  const int b_stride = static_cast<int>(call.ldb), a_stride = static_cast<int>(call.lda);
  const int c_stride = static_cast<int>(call.ldc);
  const float one = 1, beta = call.accumulate ? 1 : 0;
  fortran_sgemm()(call.b_transposed ? "T" : "N", call.a_transposed ? "T" : "N", &rows, &columns, &depth, &one, call.b,
                  &b_stride, call.a, &a_stride, &beta, call.c, &c_stride);
}

}  // namespace hetero::ops
