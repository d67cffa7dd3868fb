// start: makes a process one whose operators run on hetero.
//
// A C++ program calls it once, before anything else of this library. It gives the device its name
// and hooks, connects fused kernels and products to PyTorch's threads, reads the options from the
// environment (HETERO_ACCELERATOR and so on, docs/configuration.md), and makes the accelerator.
// ComputeGraph calls it by itself.
//
// Importing torch_hetero in Python does the same, except that the accelerator is made with the
// first tensor: until then a process may fork.
//
// Thread safety: any thread, any number of times; the first call does it all.

#pragma once

#include "backend/base/status.h"

namespace hetero {

// Errors: kUsage for a variable whose value does not fit, or an accelerator that this machine does
// not have. The same one at each call.
Status start();

namespace ops {

// All of it but the accelerator. Raises what start() says.
void register_process();

}  // namespace ops
}  // namespace hetero
