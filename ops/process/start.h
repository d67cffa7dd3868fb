// start: makes a process one whose operators run on hetero.
//
// A C++ program calls it once, before anything else of this library: the device gets its name and its hooks, fused kernels and products get PyTorch's threads, the
// options are read from the environment (HETERO_ACCELERATOR and so on, docs/configuration.md), and the accelerator is made. ComputeGraph calls it by itself.
//
// Importing torch_hetero in Python does the same, but for the accelerator, which is made when the first tensor is: until then a process may fork.
//
// Thread safety: any thread, any number of times; the first call does it all.

#pragma once

#include "backend/base/status.h"

namespace hetero {

// Errors: kUsage for a variable whose value does not fit, or an accelerator that this machine does not have. The same one at each call.
Status start();

namespace ops {

// All of it but the accelerator. Raises what start() says.
void register_process();

}  // namespace ops
}  // namespace hetero
