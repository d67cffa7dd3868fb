// inspect: describes a saved program and how it runs here, as text for people.
//
// Thread safety: pure functions.

#pragma once

#include <string>

#include "graph/serve/graph_executor.h"

namespace hetero::graph {

// Inputs, outputs, weights, memory, placement of each node with its reason, the program's
// instructions, and the graph.
std::string inspect(const GraphExecutor& executor);

}  // namespace hetero::graph
