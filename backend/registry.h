// Registry: which devices this process has.
//
// The CPU device always exists. At most one accelerator is chosen, once, by name ("none", "sim", "cuda"), before it
// is first used; the choice comes from ops/config. Devices are created on first use and leaked on purpose: tensors
// may die after static destructors have run.
//
// Thread safety: all functions may be called from any thread.

#pragma once

#include <string_view>

#include "backend/device.h"

namespace hetero::backend {

// The CPU. Never null, never fails.
Device& cpu_device();

// The chosen accelerator, or null for "none".
Device* accelerator();

// Chooses the accelerator. Errors: kUsage for an unknown name, kDevice where the machine has no such device.
// REQUIRES: no Block of the accelerator in use is alive.
Status choose_accelerator(std::string_view name);

// The device at `index`: cpu_device() for kCpu, accelerator() for kAccelerator (which may be null).
Device* device_at(DeviceIndex index);

}  // namespace hetero::backend
