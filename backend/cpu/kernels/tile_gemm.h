// Matrix products on the processor's tile unit (Intel AMX): y = x * w^T + bias, or x * w + bias,
// for any number of rows. x may be transposed too, as in the gradient of a weight.
//
// The unit multiplies tiles of bfloat16 and adds in float32, sixteen times as fast as vector
// instructions. It multiplies float32 too, with the accuracy of float32: a float is exactly the sum
// of three bfloat16 (its planes: 24 bits are 3 times 8), and of the nine products of two such sums
// the six largest are computed. What is left out is at most 2^-24 of a product, typically much
// less: the error of a product is up to two roundings instead of one, and that of a sum is measured
// to be below that of a chain of fused multiply-adds, since two products are added at a time.
// (Henry, Tang, Heinecke: Leveraging the bfloat16 Artificial Intelligence Datatype for
// Higher-Precision Computations, arXiv:1904.06376; cuBLAS emulates float32 likewise.)
//
// Planes have the exponents of a float, but not its smallest ones, and infinity minus infinity is
// no number. So float32 operands are looked at while they are packed: blocks of rows of x that have
// values above 2^40 or that are no numbers, or a row of only very small ones, go to the float32
// product that the caller gives. A very small element beside larger ones of its row may lose up to
// 2^-126.
//
//   void* const memory = std::aligned_alloc(64, tile_weight_bytes(call.element, call.n, call.k));
//   call.packed = pack_tile_weight(call, memory) ? memory : nullptr;  // once
//   tile_gemm(call, sgemm);                                          // often
//
// A result depends neither on the number of threads nor on the other rows, except where those go to
// `sgemm`, with the rows of their block.
//
// Each thread keeps its packed operands from call to call: about 2 MiB, up to 8 for rows that
// threads share, and 16 for weights that are not packed before.
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
// Float16 has no products of tiles.
inline bool has_tiles_for(Element element) { return element != Element::kFloat16 && has_tiles(); }

// The memory of a packed weight, a multiple of 64: as much as the weight for bfloat16, one and a
// half times as much for float32, in whole tiles.
int64_t tile_weight_bytes(Element element, int64_t n, int64_t k);
// Packs the w of a call; what else is in the call is not looked at. False where w has values that
// make tiles useless: memory may be given back then.
// REQUIRES: has_tiles_for(call.element); `to` is aligned to 64 bytes.
bool pack_tile_weight(const Matvec& call, void* to);

// Writes the y of each call. A call whose `packed` is null has its w packed each time, which is
// worth it for many rows.
// REQUIRES: has_tiles_for(element); same_x for any two calls; a y overlaps nothing that is read,
// and no other y. float32: sgemm is not null.
void tile_gemm(std::span<const Matvec> calls, Sgemm sgemm);
inline void tile_gemm(const Matvec& call, Sgemm sgemm) { tile_gemm(std::span(&call, 1), sgemm); }

}  // namespace hetero::backend
