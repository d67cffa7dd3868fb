// Placement: which device runs each node, in which order, and why. placement.cpp has the algorithm.
//
// Thread safety: pure functions, but for the arguments.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/placement/task_graph.h"

namespace hetero::graph {

// What is more intricate must take so much less time at least.
inline constexpr double kWorthIt = 0.98;

// Makes `tasks` of the plan's program, places them, and puts them in the `order` in which they are
// to be submitted. REQUIRES: the program has runs, bodies and fused groups only.
void place_nodes(const Graph& graph, const PlanOptions& options, Plan& plan, TaskGraph& tasks,
                 std::vector<uint32_t>& order);
// What the search for a placement finds, in seconds of the rollout. `candidates`, where not null,
// gets what was looked at.
double search_seconds(TaskGraph& tasks, std::vector<Candidate>* candidates = nullptr);
// Says in the plan where the tasks run, and why there.
void write_placements(const TaskGraph& tasks, std::span<const backend::DeviceIndex> devices, Plan& plan);

}  // namespace hetero::graph
