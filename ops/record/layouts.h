// Concatenations that grow in place: a tensor to which little is added at each step, as to the keys and values of a decoder.
//
//   keys = torch.cat([keys, new], dim=-2)
//
// copies all of `keys` in PyTorch. Here, the second time, the result gets a block with room between its rows (graph/ir/layout.h), and from then on,
// where nobody else sees the old tensor any more, the new one takes its block, and only `new` is copied. The room is an eighth of the tensor at most, and
// for large ones a 64th: a copy of all happens every so many steps.
//
// lay_out() decides that for the nodes of a slice, and gives their operands the windows of the blocks. A view that cannot be seen in a block with gaps, an
// operator that is not known to take any strides, an accelerator, or a setting under which kernels have to get what they would get from PyTorch: then
// the gaps are closed before the run (ops/memory/gaps.h). Who reads bytes without a node gets a copy (sync.cpp).
//
// Thread safety: the recorder's lock.

#pragma once

#include "ops/record/trace_slice.h"

namespace hetero::ops {

// REQUIRES: the buffers of the slice are described, and its nodes written down.
void lay_out(TraceSlice& slice);

}  // namespace hetero::ops
