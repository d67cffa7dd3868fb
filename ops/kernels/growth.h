// Concatenations that grow in place: a tensor to which little is added at each step, as to the keys and values of a decoder.
//
//   keys = torch.cat([keys, new], dim=-2)
//
// copies all of `keys` in PyTorch. Here, the second time, the result gets a block with room between its rows (graph/ir/layout.h), and from then on,
// where nobody else sees the old tensor any more, the new one takes its block, and only `new` is copied. The room is an eighth of the tensor at most, and
// for large ones a 64th: a copy of all happens every so many steps.
//
// lay_out() decides that for the nodes of a cut, and gives their operands the windows of the blocks. A view that cannot be seen in a block with gaps, an
// operator that is not known to take any strides, an accelerator, or a setting under which kernels have to get what they would get from PyTorch: then
// the gaps are closed before the run. Who reads bytes without a node gets a copy (sync.cpp).
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
