// The BLAS and the oneDNN that torch brings or was linked with.
//
// Thread safety: any thread. A product that is called in a parallel region stays on its thread.

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "backend/cpu/kernels/gemm.h"

namespace hetero::ops {

// Whether sgemm() may be called: torch without LAPACK has no BLAS.
bool has_sgemm();
void sgemm(const backend::Gemm& call);

// ---- a packed b: MKL's cblas_sgemm_pack and cblas_sgemm_compute
//
// sgemm() packs b in each call, which is a large part of a product of some hundred rows. One packed
// b serves products of any number of rows, on any number of threads, also several at once. MKL
// writes one word of it in each product, with the value that is there.

// Whether the functions below may be called. Other libraries do not have them.
bool has_packed_sgemm();
// The address space of a packed b, and so the most memory that it may take: MKL asks for some 8 MiB
// more than it uses.
int64_t packed_b_space(int64_t n, int64_t k);
// Packs the b of a call and ignores the rest of it. The bytes do not move. Throws where there is no
// address space.
at::Tensor packed_b(const backend::Gemm& call);
// The memory that it takes: b's own and 8 KiB; a part of a huge page more for 8 MiB and above.
int64_t packed_b_bytes(const at::Tensor& packed);
// sgemm() with packed_b(call) instead of call.b.
void sgemm_packed(const backend::Gemm& call, const void* packed);

// ---- oneDNN

// Whether it has kernels for `dtype` on this processor, by what PyTorch says.
bool onednn_computes(at::ScalarType dtype);

}  // namespace hetero::ops
