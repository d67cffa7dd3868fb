#include "graph/fusion/fusion.h"

#include <algorithm>

#include "graph/fusion/group_builder.h"

namespace hetero::graph {
namespace {

bool build(const Graph& graph, const std::vector<uint32_t>& members, GroupBuilder& builder) {
  Lowering lowering;
  Footprint footprint;
  builder.begin(graph);
  return std::ranges::all_of(members, [&](uint32_t n) {
    return n < graph.nodes.size() && lower_node(graph, graph.nodes[n], lowering) &&
           measure(graph, graph.nodes[n], lowering, footprint) == FusionNote::kJoined &&
           builder.add(n, lowering, footprint) == FusionNote::kJoined;
  });
}

bool same_step(const backend::FusedStep& a, const backend::FusedStep& b) {
  return a.kind == b.kind && a.input_count == b.input_count && a.value == b.value &&
         std::equal(a.inputs, a.inputs + a.input_count, b.inputs) && a.operand == b.operand &&
         a.first_number == b.first_number && a.map == b.map && a.reducer == b.reducer;
}

std::vector<uint8_t> stored_buffers(const Graph& graph, const FusedGroup& group) {
  std::vector<uint8_t> stored(graph.buffers.size());
  for (const GroupOperand& operand : group.operands) {
    if (operand.stores && operand.buffer < stored.size()) stored[operand.buffer] = 1;
  }
  return stored;
}

}  // namespace

bool build_group(const Graph& graph, std::span<const uint8_t> needed, FusedGroup& group) {
  GroupBuilder builder;
  if (!build(graph, group.members, builder)) return false;
  builder.finish(needed, group);
  group.prepared = backend::prepare_fused(group.kernel, group.space, group.launch).ok();
  return true;
}

bool space_of(const Graph& graph, const FusedGroup& group, backend::FusedSpace& space) {
  GroupBuilder builder;
  FusedGroup other;
  other.members = group.members;
  if (!build(graph, group.members, builder)) return false;
  builder.finish(stored_buffers(graph, group), other);
  if (!(other == group) || other.kernel.values != group.kernel.values ||
      !std::ranges::equal(other.kernel.steps, group.kernel.steps, same_step)) {
    return false;
  }
  space = other.space;
  return true;
}

bool gather_numbers(const Graph& graph, const FusedGroup& group, std::vector<backend::Number>& numbers,
                    const std::vector<uint8_t>* changed) {
  thread_local Lowering lowering;
  numbers.clear();
  for (const uint32_t n : group.members) {
    if (!lower_node(graph, graph.nodes[n], lowering)) return false;
    // A number may say which piece is which.
    if (lowering.pieces > 1 && changed != nullptr && (*changed)[n] != 0) return false;
    numbers.insert(numbers.end(), lowering.numbers.begin(), lowering.numbers.end());
  }
  return numbers.size() == group.kernel.number_count;
}

Status restore_groups(const Graph& graph, Plan& plan) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    FusedGroup& group = plan.groups[g];
    const std::vector<GroupOperand> expected = group.operands;
    if (!build_group(graph, stored_buffers(graph, group), group) || group.operands != expected) {
      return Status(ErrorClass::kInternal, "group " + std::to_string(g) + " is no group of this graph");
    }
  }
  return Status();
}

}  // namespace hetero::graph
