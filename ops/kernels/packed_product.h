// Products by a packed weight: what the implementations of linear_choice.h that need one share.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <ATen/core/Tensor.h>

#include "backend/cpu/kernels/gemm.h"
#include "backend/cpu/kernels/matvec.h"
#include "ops/kernels/linear_choice.h"
#include "ops/memory/packed_weights.h"

namespace hetero::ops {

// Whether a BLAS, which counts in int, can have the call.
bool fits_blas(const backend::Matvec& call);
// The call as BLAS has it, once the bias is in the rows of y, to which it adds. REQUIRES: float32;
// fits_blas().
backend::Gemm gemm_over_bias(const backend::Matvec& call);

// Whether products of such elements may run on the tile unit, as things are configured.
bool may_use_tiles(backend::Element element);

// Whether the implementation, one that needs packing, can compute the call.
bool can_multiply_packed(LinearImplementation implementation, const backend::Matvec& call);

PackedForm form_of(LinearImplementation implementation);
// The most memory that the call's w may take when it is packed.
int64_t packed_space(LinearImplementation implementation, const backend::Matvec& call);
// The call's w, packed, and the memory that it takes. Undefined where it has values that the
// implementation cannot have.
PackedWeights::Made packed_weight(LinearImplementation implementation, const backend::Matvec& call);

// The product by call.packed. Tiles give rows that they cannot have to `plain`, which computes by
// call.w. REQUIRES: can_multiply_packed(); call.packed is of packed_weight().
void multiply_packed(LinearImplementation implementation, const backend::Matvec& call, backend::Sgemm plain);

}  // namespace hetero::ops
