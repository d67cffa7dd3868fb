// The operators that every device must have; see basic.cpp.

#pragma once

#include <torch/library.h>

namespace hetero::ops {

// Factories, views, copies, scalar reads, storage changes.
void register_basic(torch::Library& library);

}  // namespace hetero::ops
