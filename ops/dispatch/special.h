// Operators that PyTorch routes to device-specific entry points and that a fallback cannot serve
// (special.cpp).
//
// Thread safety: any thread, as PyTorch's dispatcher.

#pragma once

#include <torch/library.h>

namespace hetero::ops {

void register_special(torch::Library& library);

}  // namespace hetero::ops
