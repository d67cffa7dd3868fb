// start: makes a process one whose operators run on hetero.
//
// Importing torch_hetero does this in Python. A C++ program calls it once, before anything else of this library: the device gets its name and its hooks, fused
// kernels and products get PyTorch's threads, and the options are read from the environment (HETERO_ACCELERATOR and so on, docs/configuration.md).
//
// Thread safety: any thread, any number of times; the first call does it all.

#pragma once

#include "backend/status.h"

namespace hetero {

// Errors: kUsage for a variable whose value does not fit. The same one at each call.
Status start();

}  // namespace hetero
