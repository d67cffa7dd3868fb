// The kernel of concatenations that grow in place: only what is added is copied (ops/record/layouts.h decides which do).
//
// Thread safety: any thread.

#pragma once

#include "ops/dispatch/typed.h"

#include <ATen/ops/cat_ops.h>

namespace hetero::ops {

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
