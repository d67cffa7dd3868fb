// Preparation: what kernels do in advance for programs whose calls are known.
//
// They choose an implementation and derive what they keep of weights (Binding::derived). Otherwise
// they would do so in their first runs.
//
// Thread safety: any thread.

#pragma once

#include "graph/ir/op.h"

namespace hetero::graph {

// Calls of `kernel` are prepared by `prepare` once they have their addresses. Of the operands, only those with a binding have their values then; it writes none.
// What it throws is passed over: a call that cannot be prepared says so when it runs.
void set_preparation(KernelFunction kernel, KernelFunction prepare);

// Null if there is nothing to do in advance.
KernelFunction preparation_of(KernelFunction kernel);

}  // namespace hetero::graph
