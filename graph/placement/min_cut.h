// min_cut: the placement with the least sum of tasks' and copies' times, as if no two ran at once.
//
// For a chain that is the optimum, and it is exact: tasks on the CPU's side of a minimum cut run
// there. A value costs one copy however many tasks read it on the other side. Dinic's algorithm
// finds the flow.
// Source: H. S. Stone, "Multiprocessor scheduling with the aid of network flow algorithms", 1977.
//
// Thread safety: pure function.

#pragma once

#include <vector>

#include "graph/placement/task_graph.h"

namespace hetero::graph {

// Per task, its device.
std::vector<backend::DeviceIndex> min_cut(const TaskGraph& tasks);

}  // namespace hetero::graph
