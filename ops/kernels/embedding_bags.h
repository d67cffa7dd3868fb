// Few embedding bags, by a kernel of ours with the bits of PyTorch's.
//
// Thread safety: any thread.

#pragma once

#include "graph/ir/graph.h"

namespace hetero::ops {

// _embedding_bag and _embedding_bag_forward_only: sums and means of rows of floats. Returns false
// and does nothing where the stock kernel has to run, which also raises what is to be raised.
bool run_embedding_bags(const graph::Invocation& invocation);

}  // namespace hetero::ops
