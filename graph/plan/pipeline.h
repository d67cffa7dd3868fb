// make_plan: from a graph to a plan for this machine.
//
// Thread safety: each thread has memory of its own for planning.

#pragma once

#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"

namespace hetero::graph {

// Plans `graph`. The pipeline of passes; see pipeline.cpp. Never fails on a legal graph: where the
// accelerator's memory does not suffice, nodes move to the CPU. `plan` may hold an earlier plan,
// whose memory is reused.
void make_plan(const Graph& graph, const PlanOptions& options, Plan& plan);

}  // namespace hetero::graph
