// panel_gemm: matrix products by vector instructions with a packed weight.
//
// It computes y = x * w^T + bias, or x * w + bias, for any number of rows. x may be transposed too,
// as in the gradient of a weight. w is packed into panels of 16 or 32 outputs, in the order in
// which a kernel reads them (panel_kernel.h). x is read in place unless its layout prevents that.
// Float32 is multiplied as such, 2-byte elements as floats, and bfloat16 by the processor's own
// instruction if that is faster. Sums are kept in float32 and rounded once.
//
//   void* const memory = std::aligned_alloc(64, panel_weight_bytes(call.element, call.n, call.k));
//   pack_panel_weight(call, memory);  // once
//   call.packed = memory;
//   panel_gemm(call);                 // often
//
// A result depends neither on the number of threads nor on the other rows. Its last bits depend on
// the instruction set.
//
// Each thread keeps its copies of x from call to call, typically less than 512 KiB, and up to 16
// MiB for weights that are not packed in advance.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

inline bool has_panels(InstructionSet set = instruction_set()) { return set != InstructionSet::kPortable; }

// How rows of x may be in pieces.
struct PanelPieces {
  int64_t terms;  // their size is a multiple
  bool floats;    // they have to be of float32
};
// REQUIRES: has_panels(set).
PanelPieces panel_pieces(Element element, InstructionSet set = instruction_set());

// The memory of a packed weight, a multiple of 64: as much as the weight, in whole panels.
int64_t panel_weight_bytes(Element element, int64_t n, int64_t k, InstructionSet set = instruction_set());
// Packs the w of a call and ignores the rest of it. REQUIRES: has_panels(set); `to` is aligned to
// 64 bytes.
void pack_panel_weight(const Matvec& call, void* to, InstructionSet set = instruction_set());

// Writes the y of each call. If `packed` is null, w is packed each time, which pays for many rows.
// REQUIRES: has_panels(set), and set <= instruction_set(); same_x for any two calls; pieces as
// panel_pieces() says; no y overlaps an input or another y.
void panel_gemm(std::span<const Matvec> calls, InstructionSet set = instruction_set());
inline void panel_gemm(const Matvec& call, InstructionSet set = instruction_set()) {
  panel_gemm(std::span(&call, 1), set);
}

}  // namespace hetero::backend
