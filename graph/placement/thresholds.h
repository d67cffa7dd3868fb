// Placement by fixed rules instead of a search: PlanOptions::thresholds, as other runtimes offload.
//
// The rules look at one task at a time, in the order of the program, and at no copies. Their times
// are the cost model's: measured where there is a history.
//
// Thread safety: a pure function, but for the tasks.

#pragma once

#include "graph/ir/graph.h"
#include "graph/ir/plan_options.h"
#include "graph/placement/task_graph.h"

namespace hetero::graph {

// Leaves each task of `tasks` that may run on both devices the one that the rules say.
void decide_by_thresholds(const Graph& graph, const PlanOptions& options, TaskGraph& tasks);

}  // namespace hetero::graph
