// verify: checks that a graph and a plan are legal. It shares no code with the passes that make
// them.
//
// verify_graph checks that ids are in range, windows are inside their buffers, and definitions come
// first and once.
//
// verify_plan computes happens-before by vector clocks over queues, records and waits. It checks
// that:
// - every conflicting pair of accesses is ordered;
// - every read finds valid bytes on its device;
// - live values share no bytes;
// - every wait has an earlier record;
// - dead nodes have no observable effect;
// - placements are legal, and the arena is within bounds.
//
// Errors are kInternal, with the first violation in words.
//
// Thread safety: pure functions.

#pragma once

#include "backend/base/status.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"

namespace hetero::graph {

Status verify_graph(const Graph& graph);
Status verify_group(const Graph& graph, const FusedGroup& group);
Status verify_plan(const Graph& graph, const Plan& plan, const PlanOptions& options);

}  // namespace hetero::graph
