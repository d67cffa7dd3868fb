// The operators that every device must have: factories, views, copies and scalars (basic.cpp).
//
// Thread safety: any thread, as PyTorch's dispatcher.

#pragma once

#include <torch/library.h>

namespace hetero::ops {

// Factories, views, copies, scalar reads, storage changes.
void register_basic(torch::Library& library);

}  // namespace hetero::ops
