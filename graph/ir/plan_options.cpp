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
  }
  return "?";
}

bool runs_on_accelerator(const OpTraits& traits, const PlanOptions& options) {
  const backend::Device* const device = options.accelerator_device;
  return traits.on_accelerator && (device == nullptr || device->runs_host_kernels() || traits.device_kernel != nullptr);
}

}  // namespace hetero::graph
