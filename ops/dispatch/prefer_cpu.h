// Operators of libraries that have a kernel of the CPU and one that composes them for all devices.
//
// PyTorch would give the device the second, as it does for every device without a kernel. That may
// be a Python loop where the CPU's kernel is compiled (torchaudio's filters, bitsandbytes'
// quantization). The device has the CPU's memory, so it takes the CPU's kernel: the operator is
// recorded if it has a Meta kernel, and runs at once otherwise, like one that the CPU alone has.
// register_whole() in registration.cpp does the same for PyTorch's own operators, once; those of
// libraries appear at any time.
//
// Thread safety: any thread.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace hetero::ops {

// Gives the operator to the catch-all if it has both kernels and none of the device, for as long
// as the result lives. Otherwise there is no result.
std::optional<c10::RegistrationHandleRAII> prefer_cpu_kernel(const c10::OperatorName& name);

}  // namespace hetero::ops
