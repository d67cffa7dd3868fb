// Gemm: the float32 matrix product that kernels of backend/ call.
//
// backend/ has no BLAS of its own. ops/ passes in that of torch (ops/kernels/blas.h); tests pass in
// a plain loop.
//
// Thread safety: the product is called on several threads at once, and must then start no threads.

#pragma once

#include <cstdint>

#include "backend/base/function_ref.h"

namespace hetero::backend {

// c[m, n] = a[m, k] * b[k, n], plus c's former value if `accumulate`. Row-major; lda, ldb and ldc
// are the elements from row to row of the memory.
struct Gemm {
  bool a_transposed = false;  // a's memory is [k, m]
  bool b_transposed = false;  // b's memory is [n, k]
  bool accumulate = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const float* a = nullptr;
  int64_t lda = 0;
  const float* b = nullptr;
  int64_t ldb = 0;
  float* c = nullptr;
  int64_t ldc = 0;
};

// Called on several threads at once; must not start threads of its own then.
using Sgemm = FunctionRef<void(const Gemm& call)>;

}  // namespace hetero::backend
