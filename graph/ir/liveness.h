// Liveness: which nodes of a graph are needed. Planning drops the others, and the recorder forgets
// dead nodes that stay in its trace.
//
// Thread safety: a pure function.

#pragma once

#include <cstdint>
#include <vector>

#include "graph/ir/graph.h"

namespace hetero::graph {

// Classical liveness, one sweep from the last node to the first. `needed` says for each buffer
// whether its bytes are needed after the last node, and is used up. `live` has an entry for each
// node; one that is not 0 stays as it is, and such a node lives in any case; the others are set to
// 1 or 0. Returns how many nodes are dead. REQUIRES: graph.windows is set.
uint32_t find_live(const Graph& graph, std::vector<uint8_t>& needed, std::vector<uint8_t>& live);

}  // namespace hetero::graph
