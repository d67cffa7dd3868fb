// Concatenations that grow in place: a tensor that gets a little longer at each step, as a
// decoder's keys and values do.
//
//   keys = torch.cat([keys, new], dim=-2)
//
// PyTorch copies all of `keys`. Here the result of the second such call gets a block with room
// between its rows (graph/ir/layout.h). From then on, if nothing else uses the old tensor, the new
// one takes over its block, and only `new` is copied. The room is at most an eighth of the tensor,
// and a 64th of a large one, so everything is copied every so many steps.
//
// lay_out() decides that for the nodes of a slice, and gives their operands the windows of the
// blocks. The gaps are closed before the run (ops/memory/gaps.h) in four cases: a view that a block
// with gaps cannot express, an operator that may not take any strides, an accelerator, or a setting
// under which kernels must get what PyTorch would give them. Readers without a node get a copy
// (sync.cpp).
//
// Thread safety: the recorder's lock.

#pragma once

#include "ops/record/trace_slice.h"

namespace hetero::ops {

// REQUIRES: the buffers of the slice are described, and its nodes written down.
void lay_out(TraceSlice& slice);

}  // namespace hetero::ops
