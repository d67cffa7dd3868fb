// Operators that PyTorch routes to device-specific entry points, and that a fallback cannot serve; see special.cpp.

#pragma once

#include <torch/library.h>

namespace hetero::ops {

void register_special(torch::Library& library);

}  // namespace hetero::ops
