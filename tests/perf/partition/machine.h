// Machine: the figures of a profile (torch_hetero/profiles/*.json), for planning and for a SimDevice.
//
// The reader knows just the shape that profiles have: sections of "key": number, one section deep.
// Thread safety: functions without state.

#pragma once

#include <string>

#include "backend/sim/sim_device.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"

namespace hetero::graph::testing {

struct Machine {
  std::string name;
  backend::SimOptions sim;
  backend::Capabilities cpu;

  // What planning may use of it; the accelerator's memory is not limited.
  PlanOptions options() const;
  // The same machine with bandwidths and arithmetic that many times as slow: programs that are as many times as small have its proportions.
  Machine slower(double bandwidth, double arithmetic) const;
};

// Throws std::runtime_error where the file lacks something.
Machine read_machine(const std::string& folder, const std::string& name);

}  // namespace hetero::graph::testing
