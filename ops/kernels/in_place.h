// Kernels that write only what is missing, where the program wants the result.
//
// Concatenations that grow in place copy what is added (ops/record/layouts.h decides which do).
// Padding with a number writes in the result's layout. ATen's makes a tensor of its own, of a
// layout of its own, fills all of it, and is copied.
//
// Thread safety: any thread.

#pragma once

#include <optional>

#include "graph/ir/op.h"
#include "graph/ir/window.h"

namespace hetero::ops {

// Copies what is added, where the first tensor is in its place already. False where it is not.
bool grow_in_place(const graph::Invocation& invocation);

// The elements of a row of the part, where rows of the whole are rows of such parts one behind the
// other along a dimension, in the whole's order. Nothing for another layout. REQUIRES: one rank and
// dtype; the sizes differ along that dimension only.
std::optional<int64_t> row_of(const graph::Window& part, const graph::Window& whole, int along);

// constant_pad_nd. False, and nothing is done, where the result has no memory yet.
bool pad_in_place(const graph::Invocation& invocation);

}  // namespace hetero::ops
