// Which fused groups may follow a call: run on parts of its result as they are made
// (backend/cpu/fused/follower.h).
//
// Thread safety: a pure function.

#pragma once

#include "graph/ir/graph.h"
#include "graph/ir/instruction.h"

namespace hetero::graph {

// Whether the instruction at `position` is a call whose kernel can have a follower, and the next
// one a group that reads the call's result and can be run again, as far as the graph tells: it
// writes nothing that the call or it reads, other than the result. What the call reads has to
// outlive the group then.
bool has_follower(const Graph& graph, const Instructions& instructions, uint32_t position);

// The operand of the group that is the call's result. REQUIRES: has_follower().
uint16_t followed_operand(const Graph& graph, const Instructions& instructions, uint32_t position);

}  // namespace hetero::graph
