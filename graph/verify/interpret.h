// interpret: what running a graph must give. The oracle of tests, of HETERO_VERIFY=1, and of
// constants that are folded.
//
// Thread safety: one run at a time for a set of bindings.

#pragma once

#include <span>

#include "backend/base/status.h"
#include "graph/ir/binding.h"
#include "graph/ir/graph.h"

namespace hetero::graph {

// The oracle: runs every node of the graph in program order on the CPU, each buffer in memory of
// its own, no plan. `bindings` as for Executor::run; REQUIRES: every valid binding is valid on the
// CPU. Returns the first error.
Status interpret(const Graph& graph, std::span<Binding* const> bindings);

}  // namespace hetero::graph
