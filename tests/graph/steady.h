// Steady: the plan that a program has from its second or third run on, when what stays on the accelerator is there.
//
// Thread safety: pure function of its arguments.

#pragma once

#include <cstdint>

#include "graph/plan.h"
#include "graph/simulate.h"

namespace hetero::graph::testing {

struct Steady {
  Plan plan;
  Simulation simulation;
  uint64_t streamed_bytes = 0;  // of Buffer::steady ones that are copied to the accelerator in each run, each once
};

// Plans, lets what outlives the program lie where the plan leaves it, and plans again, until nothing moves any more or four times.
// `graph` is left as the last plan was made from it. Throws std::logic_error where the plan is not legal.
Steady plan_until_steady(Graph& graph, const PlanOptions& options);

}  // namespace hetero::graph::testing
