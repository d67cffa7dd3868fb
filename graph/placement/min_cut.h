// min_cut: the placement with the least sum of what tasks and copies take, as if nothing ran beside anything else.
//
// For a chain that is the optimum, and it is exact: tasks on the CPU's side of a minimum cut run there (H. S. Stone, "Multiprocessor scheduling with
// the aid of network flow algorithms", 1977). A value costs one copy however many read it on the other side. The flow is found by Dinic's algorithm.
//
// Thread safety: pure function.

#pragma once

#include <vector>

#include "graph/placement/task_graph.h"

namespace hetero::graph {

// Per task, its device.
std::vector<backend::DeviceIndex> min_cut(const TaskGraph& tasks);

}  // namespace hetero::graph
