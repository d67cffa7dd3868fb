// The measured times of operators on this machine: the history that planning reads, its file, and
// updates from runs.
//
// The file is ~/.cache/hetero/costs-2-HASH.txt (or below $XDG_CACHE_HOME), for one
// processor model, one version of torch and one accelerator (for a GPU, its model and driver). It
// holds only times of real clocks. It is written from time to time and at exit. Deleting it is
// always safe.
//
// Thread safety: the executor's lock.

#pragma once

#include "graph/cost/history.h"
#include "graph/ir/plan_options.h"
#include "graph/run/run_data.h"

namespace hetero::ops {

// Of the accelerator that is chosen now; loaded from its file at first use.
graph::CostHistory& cost_history();
// Adds what the plan's instructions took. `options`: those of the plan. Kernels of the accelerator
// that ran beside others are left out: what they took is not what they take. Where that is known of
// all of them, they tell how much they are in each other's way, of this program and of all.
struct Learned {
  bool beside = false;  // there were such
  // CostModel::slowness(), where it is another one than was assumed of the plan.
  double slowness = 0;
};
Learned learn_costs(const graph::Graph& graph, const graph::Plan& plan, const graph::PlanOptions& options,
                    const graph::RunTimes& times);

}  // namespace hetero::ops
