// The definition of a matrix product, for tests of what multiplies with somebody else's.

#pragma once

#include "backend/cpu/kernels/gemm.h"

namespace hetero::backend {

inline void plain_sgemm(const Gemm& call) {
  for (int64_t i = 0; i < call.m; ++i) {
    for (int64_t j = 0; j < call.n; ++j) {
      float& c = call.c[i * call.ldc + j];
      float sum = call.accumulate ? c : 0;
      for (int64_t l = 0; l < call.k; ++l) {
        sum += (call.a_transposed ? call.a[l * call.lda + i] : call.a[i * call.lda + l]) *
               (call.b_transposed ? call.b[j * call.ldb + l] : call.b[l * call.ldb + j]);
      }
      c = sum;
    }
  }
}

}  // namespace hetero::backend
