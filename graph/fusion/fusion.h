// Makes fused groups (graph/ir/fused_group.h) of a graph's nodes, and renews their spaces and
// numbers.
//
// A value of a group is one entry for each point of its space, addressed by (buffer, offset,
// strides). A member that reads exactly what an earlier one wrote takes the value. A value that is
// not used outside the group afterwards is not stored and has no memory.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/base/status.h"
#include "backend/fused/kernel.h"
#include "graph/ir/fused_group.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

// Builds everything but `members` from them. What is written to buffers with needed[buffer] is
// stored. False where the members do not fit together.
bool build_group(const Graph& graph, std::span<const uint8_t> needed, FusedGroup& group);

// The sizes and strides of `group` for the windows that the graph has now. False where the members
// no longer fit together as they did. Other sizes may come with other numbers.
bool space_of(const Graph& graph, const FusedGroup& group, backend::FusedSpace& space);

// The members' numbers for the attributes that the graph has now. False where a member no longer
// lowers as it did; `changed`, where given, marks the nodes of which only the numbers among the
// attributes may be others than when the group was made.
bool gather_numbers(const Graph& graph, const FusedGroup& group, std::vector<backend::Number>& numbers,
                    const std::vector<uint8_t>* changed = nullptr);

// Builds what the text of a plan leaves out: the groups' kernels, spaces and numbers. Fails where
// the groups are not those of `graph`.
Status restore_groups(const Graph& graph, Plan& plan);

}  // namespace hetero::graph
