// verify: legality of a graph and of a plan, written independently of the passes that make them.
//
// verify_graph: ids in range, windows inside their buffers, defines come first and once.
// verify_plan: happens-before by vector clocks over queues, records and waits; every conflicting pair of accesses is ordered by it;
// every read finds valid bytes on its device; live values share no bytes; every wait has an earlier record; nodes marked dead have no
// observable effect; placements are legal; the arena is within bounds.
//
// Errors are kInternal, with the first violation in words. Thread safety: pure functions.

#pragma once

#include "backend/base/status.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

Status verify_graph(const Graph& graph);
Status verify_group(const Graph& graph, const FusedGroup& group);
Status verify_plan(const Graph& graph, const Plan& plan, const PlanOptions& options);

}  // namespace hetero::graph
