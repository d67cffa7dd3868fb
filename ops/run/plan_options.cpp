#include "ops/run/plan_options.h"

#include "backend/registry/registry.h"
#include "backend/sim/sim_device.h"
#include "ops/run/cost_history.h"
#include "ops/run/placement_rules.h"
#include "ops/settings/config.h"

namespace hetero::ops {

backend::Capabilities planned_host() {
  backend::Capabilities rates = backend::cpu_device().capabilities();
  const backend::Device* const accelerator = backend::accelerator();
  if (accelerator == nullptr || !accelerator->has_virtual_clock()) return rates;
  const backend::SimOptions options = backend::sim_options();
  if (options.cpu_flops > 0) rates.flops = options.cpu_flops;
  if (options.cpu_flops_half > 0) rates.flops_half = options.cpu_flops_half;
  if (options.cpu_memory_bandwidth > 0) rates.memory_bandwidth = options.cpu_memory_bandwidth;
  return rates;
}

graph::PlanOptions configured_plan_options() {
  graph::PlanOptions options;
  options.fusion = last_bits_may_differ();
  options.machine = backend::describe(backend::all_devices());
  options.machine.cpu().rates = planned_host();
  if (options.machine.has_accelerator()) {
    options.policy = config().placement.load(std::memory_order_relaxed);
    options.compute_queues = static_cast<int>(config().compute_queues.load(std::memory_order_relaxed));
    options.join_copies = config().join_copies.load(std::memory_order_relaxed);
    options.preferences = &placement_rules().by_op();
    options.history = &cost_history();
  }
  return options;
}

}  // namespace hetero::ops
