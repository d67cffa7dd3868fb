// Counts the outcome of fusion for the operators of all plans, for explain().
//
// Thread safety: any thread.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "graph/ir/fused_group.h"
#include "graph/ir/plan.h"

namespace hetero::ops {

// Counts the live nodes of a plan that was just made.
void count_fusion(const graph::Graph& graph, const graph::Plan& plan);

// How many nodes, by FusionNote.
inline constexpr size_t kFusionNotes = static_cast<size_t>(graph::FusionNote::kOtherDevice) + 1;
std::array<int64_t, kFusionNotes> fusion_notes();
// How many of those that did not join others, by "operator: reason".
std::map<std::string, int64_t> unfused_operators();
void reset_fusion_counts();

}  // namespace hetero::ops
