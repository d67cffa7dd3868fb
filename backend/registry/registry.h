// Registry: which devices this process has.
//
// The CPU device always exists. Accelerators are chosen by name: "none", "sim" or "cuda", or "sim:3" for three simulated ones;
// the choice, and when it is made, come from ops/config. Devices are made when they are chosen and leaked on purpose: tensors may die after static
// destructors have run. For tests a FaultDevice can be put before a device.
//
// Thread safety: all functions may be called from any thread.

#pragma once

#include <string_view>

#include "backend/device/device.h"

namespace hetero::backend {

class FaultDevice;

// The CPU. Never null, never fails.
Device& cpu_device();

// The first of the chosen accelerators, or null for "none".
Device* accelerator();
// All devices, by DeviceIndex.
Devices all_devices();

// Whether there can be such accelerators; nothing is made. Errors: kUsage for an unknown name, kDevice where this build has none.
Status check_accelerator(std::string_view name);
// Chooses the accelerators and makes them, where they are not. Errors: those, and kDevice where the machine has no such device.
// REQUIRES: no Block of the accelerators in use is alive.
Status choose_accelerator(std::string_view name);
// In a forked child whose parent had made the accelerator and not used it: there is none, and the next choice makes the child's own.
void forget_accelerator();
// Whether set_sim_options() says what accelerators of this name are like.
bool is_simulated(std::string_view name);
// Whether they are GPUs, which PyTorch has to know.
bool is_gpu(std::string_view name);

// The device at `index`: cpu_device() for kCpu; null where there is none.
Device* device_at(DeviceIndex index);

// For tests: all who ask for the device at `index` get a FaultDevice around it, until remove_faults(), or until another accelerator is
// chosen. The same one each time for the same device; null where there is none. REQUIRES: nothing runs, there and at the removal.
FaultDevice* interpose_faults(DeviceIndex index);
void remove_faults();

}  // namespace hetero::backend
