// OpaqueOperators: during its lifetime, custom operators are recorded as single nodes, not as what
// their kernels do.
//
// A library's operator may have one kernel for all devices (CompositeExplicitAutograd;
// torch.library.custom_op without device_types). Lazily, it is called on tensors of the device each
// time, and the calls inside are recorded. A program would know only what it did at the capture:
// what its Python counts, checks or looks up would be lost. So a capture makes one node of it,
// whose kernel is called on the CPU in each run. The operator's Meta kernel (register_fake)
// describes its results. Without one it is recorded as its parts, like PyTorch's own composed
// operators.
//
// Thread safety: one thread at a time, the capturing one. Other threads that call such an operator
// meanwhile record a node too.

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
