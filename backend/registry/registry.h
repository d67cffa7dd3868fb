// Registry: the devices of this process.
//
// The CPU device always exists. Accelerators are chosen by name: "none", "sim" or "cuda", or
// "sim:3" for three simulated ones. ops/ makes the choice and says when. Devices are made when they
// are chosen and leaked on purpose, because tensors may die after static destructors have run.
// Tests can put a FaultDevice before a device.
//
// Thread safety: any thread may call all functions.

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

// Whether there can be such accelerators; makes nothing. Errors: kUsage for an unknown name,
// kDevice if this build has none.
Status check_accelerator(std::string_view name);
// Chooses the accelerators and makes those that do not exist yet. Errors: as above, and kDevice if
// the machine has no such device. REQUIRES: no Block of the accelerators in use is alive.
Status choose_accelerator(std::string_view name);
// After fork, drops the parent's unused accelerator; the child creates its own on next use.
void forget_accelerator();
// Whether set_sim_options() describes accelerators of this name.
bool is_simulated(std::string_view name);
// Whether they are GPUs that PyTorch must know.
bool is_gpu(std::string_view name);
// Where the GPU is then: "cuda" is one device, the first accelerator.
inline constexpr DeviceIndex kGpu = kAccelerator;

// The device at `index`: cpu_device() for kCpu; null if there is none.
Device* device_at(DeviceIndex index);

// For tests: puts a FaultDevice around the device at `index`, until remove_faults(), or until
// another accelerator is chosen. The same one each time for the same device, healed; null if there
// is none. REQUIRES: nothing runs, here and at the removal.
FaultDevice* interpose_faults(DeviceIndex index);
void remove_faults();

}  // namespace hetero::backend
