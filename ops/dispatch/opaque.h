// OpaqueOperators: while it lives, custom operators are recorded as nodes, not as what their kernels do.
//
// An operator of a library may have one kernel for all devices (CompositeExplicitAutograd; torch.library.custom_op without device_types). Lazily, it is called on
// tensors of the device, each time, and what it calls is recorded. A program would know what it did at the capture, and no more: what its Python counts,
// checks or looks up would be lost. So a capture makes one node of it, whose kernel is called on the CPU when the node runs. The operator's Meta kernel
// (register_fake) says what the results look like; one that has none is taken for what it is composed of, as PyTorch's own are.
//
// Thread safety: one thread at a time, the one that captures. Others that call such an operator meanwhile record a node too.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace hetero::ops {

class OpaqueOperators {
 public:
  OpaqueOperators();

 private:
  std::vector<c10::RegistrationHandleRAII> kernels_;
};

}  // namespace hetero::ops
