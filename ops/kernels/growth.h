// The kernel of concatenations that grow in place: only what is added is copied
// (ops/record/layouts.h decides which do).
//
// Thread safety: any thread.

#pragma once

#include "graph/ir/op.h"

namespace hetero::ops {

// Copies what is added, where the first tensor is in its place already. False where it is not.
bool grow_in_place(const graph::Invocation& invocation);

}  // namespace hetero::ops
