// tile_gemm: matrix products on the processor's tile unit (Intel AMX).
//
// It computes y = x * w^T + bias, or x * w + bias, for any number of rows. x may be transposed too,
// as in the gradient of a weight. The unit multiplies tiles of bfloat16 and adds in float32,
// sixteen times as fast as vector instructions.
//
// It multiplies float32 too, with float32's accuracy. A float is exactly the sum of three bfloat16,
// its planes, since 24 bits are 3 times 8. Of the nine products of two such sums, the six largest
// are computed. The rest is at most 2^-24 of a product, typically much less. So a product errs by
// up to two roundings instead of one. Measured, the error of a sum is below that of a chain of
// fused multiply-adds, because products are added two at a time.
// Source: Henry, Tang, Heinecke: Leveraging the bfloat16 Artificial Intelligence Datatype for
// Higher-Precision Computations, arXiv:1904.06376. cuBLAS emulates float32 in the same way.
//
// Planes lack a float's smallest exponents, and infinity minus infinity is not a number. So packing
// checks float32 operands. Some blocks of rows of x go to the caller's float32 product: those with
// values above 2^40, with values that are not numbers, or with a row of very small values only. A
// very small element next to larger ones in its row may lose up to 2^-126.
//
//   void* const memory = std::aligned_alloc(64, tile_weight_bytes(call.element, call.n, call.k));
//   call.packed = pack_tile_weight(call, memory) ? memory : nullptr;  // once
//   tile_gemm(call, sgemm);                                          // often
//
// A result depends neither on the number of threads nor on the other rows, unless these send their
// block to `sgemm`.
//
// Each thread keeps its packed operands from call to call: about 2 MiB, up to 8 for rows that
// threads share, and 16 for weights that are not packed in advance.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/kernels/gemm.h"
#include "backend/cpu/kernels/matvec.h"

namespace hetero::backend {

// Whether this processor has the unit and the system lets this process use it. The first call asks
// the system.
bool has_tiles();
// The unit has no products of float16.
inline bool has_tiles_for(Element element) { return element != Element::kFloat16 && has_tiles(); }

// The memory of a packed weight, a multiple of 64: as much as the weight for bfloat16, one and a
// half times as much for float32, in whole tiles.
int64_t tile_weight_bytes(Element element, int64_t n, int64_t k);
// Packs the w of a call and ignores the rest of it. False if w's values make tiles useless; the
// memory is then not needed. REQUIRES: has_tiles_for(call.element); `to` is aligned to 64 bytes.
bool pack_tile_weight(const Matvec& call, void* to);

// Writes the y of each call. If `packed` is null, w is packed each time, which pays for many rows.
// REQUIRES: has_tiles_for(element); same_x for any two calls; no y overlaps an input or another y.
void tile_gemm(std::span<const Matvec> calls, Sgemm sgemm);
inline void tile_gemm(const Matvec& call, Sgemm sgemm) { tile_gemm(std::span(&call, 1), sgemm); }

}  // namespace hetero::backend
