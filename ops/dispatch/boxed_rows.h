// The kernels of operators that the catch-all records.
//
// Thread safety: any thread.

#pragma once

#include "graph/ir/op.h"

namespace hetero::ops {

// Sets the kernel, and what goes with it: that of the operator's row in op_table.def if it has one
// of ours, otherwise the one that calls the operator.
void add_boxed_kernel(graph::OpTraits& traits);

}  // namespace hetero::ops
