// Attention on a GPU: _scaled_dot_product_flash_attention_for_cpu and its backward.
//
// Graphs contain the CPU's operator, because attention is recorded as that. Forward, PyTorch's
// flash or memory-efficient kernel computes what it can. The rest, and the backward pass, are
// products and a softmax in float, which take memory for every pair of a query and a key. Results
// are laid out as the node says. logsumexp is that of the CPU's operator, in natural logarithms.
//
// Thread safety: any thread.

#pragma once

#include "graph/ir/op.h"

namespace hetero::ops {

void attention_on_device(const graph::Invocation& invocation);
void attention_backward_on_device(const graph::Invocation& invocation);

}  // namespace hetero::ops
