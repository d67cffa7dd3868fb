// What planning may use, as configured in this process: devices, fusion, placement, measured costs.
//
// Thread safety: the executor lock.

#pragma once

#include "graph/ir/plan_options.h"

namespace hetero::ops {

// The host by whose rates planning goes: this one, or that of the simulated machine.
backend::Capabilities planned_host();

graph::PlanOptions configured_plan_options();

}  // namespace hetero::ops
