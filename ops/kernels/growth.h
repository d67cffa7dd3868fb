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
// lay_out() decides that for the nodes of a cut, and gives their operands the windows of the
// blocks. The gaps are closed before the run in four cases: a view that a block with gaps cannot
// express, an operator that may not take any strides, an accelerator, or a setting under which
// kernels must get what PyTorch would give them. Readers without a node get a copy (sync.cpp).
//
// Thread safety: lay_out() belongs to the recorder's lock, close_gaps() to the executor's.

#pragma once

#include "ops/dispatch/typed.h"

#include <ATen/ops/cat_ops.h>

#include "graph/ir/window.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

struct Cut;

// REQUIRES: the buffers of the cut are described, and its nodes written down.
void lay_out(Cut& cut, graph::WindowTable& windows);

// Moves a settled storage's bytes together. Where there is no memory for that, they stay as they are. REQUIRES: the executor lock, and no flights but
// those of the caller.
[[nodiscard]] Status close_gaps(HeteroStorage* storage);

// A block in which they are together, for somebody else. REQUIRES: the executor lock; valid on the CPU.
Result<backend::Block> without_gaps(const HeteroStorage* storage);

// Copies what is added, where the first tensor is in its place already. False where it is not.
bool grow_in_place(const graph::Invocation& invocation);

template <graph::KernelFunction stock>
void run_concatenation(const graph::Invocation& invocation) {
  if (!grow_in_place(invocation)) stock(invocation);
}

template <graph::KernelFunction stock>
struct KernelOf<at::_ops::cat, stock> {
  static constexpr graph::KernelFunction kValue = &run_concatenation<stock>;
};

}  // namespace hetero::ops
