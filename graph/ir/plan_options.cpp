#include "graph/ir/plan_options.h"

namespace hetero::graph {

const char* to_string(Policy policy) {
  switch (policy) {
    case Policy::kAuto:
      return "auto";
    case Policy::kCpu:
      return "cpu";
    case Policy::kAccelerator:
      return "accelerator";
    case Policy::kMixed:
      return "mixed";
    case Policy::kThresholds:
      return "thresholds";
  }
  return "?";
}

bool runs_on(const OpTraits& traits, const PlanOptions& options, backend::DeviceIndex device) {
  if (device == backend::kCpu) return true;
  if (!options.machine.has(device) || !traits.on_accelerator || traits.host_task) return false;
  const backend::Device* const there = options.machine[device].device;
  return there == nullptr || there->runs_host_kernels() || traits.device_kernel != nullptr;
}

}  // namespace hetero::graph
