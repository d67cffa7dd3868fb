// resize_plan: a plan for other sizes, out of one for the same structure.
//
// What planning decides depends on sizes in two places: how large things are (spaces of fused groups, batches, the memory plan), and whether two
// windows of one buffer overlap. The first is done again here, for what changed. The second cannot change where every write covers its whole
// buffer; where one does not, the windows of that buffer must be as they were.

#include <algorithm>
#include <cstring>

#include "graph/passes/passes.h"

namespace hetero::graph {
namespace {

bool covers_buffer(const Graph& graph, const Operand& operand) {
  if (operand.access == Access::kDefine) return true;
  const Window& window = (*graph.windows)[operand.window];
  const uint64_t bytes = graph.buffers[operand.buffer].bytes;
  return window.dense && window.first_byte == 0 && static_cast<uint64_t>(window.last_byte) == bytes;
}

bool same_overlaps(const Graph& before, const Graph& now, std::vector<uint8_t>& partial) {
  partial.assign(now.buffers.size(), 0);
  bool any = false;
  for (size_t i = 0; i < now.operands.size(); ++i) {
    if (!now.operands[i].writes()) continue;
    if (covers_buffer(before, before.operands[i]) && covers_buffer(now, now.operands[i])) continue;
    partial[now.operands[i].buffer] = 1;
    any = true;
  }
  for (size_t i = 0; any && i < now.operands.size(); ++i) {
    const BufferId buffer = now.operands[i].buffer;
    if (partial[buffer] == 0) continue;
    if (before.operands[i].window != now.operands[i].window ||
        before.buffers[buffer].bytes != now.buffers[buffer].bytes) {
      return false;
    }
  }
  return true;
}

bool same_windows(const Graph& before, const Graph& now, const Node& node) {
  const Operand* const a = before.operands.data() + node.first_operand;
  const Operand* const b = now.operands.data() + node.first_operand;
  for (int i = 0; i < node.operand_count; ++i) {
    if (a[i].window != b[i].window || before.buffers[a[i].buffer].bytes != now.buffers[b[i].buffer].bytes) return false;
  }
  return true;
}

bool same_attributes(const Graph& before, const Graph& now, uint32_t node) {
  const Node& a = before.nodes[node];
  const Node& b = now.nodes[node];
  return a.attribute_bytes == b.attribute_bytes &&
         std::memcmp(before.attributes.data() + a.attribute_offset, now.attributes.data() + b.attribute_offset,
                     a.attribute_bytes) == 0;
}

}  // namespace

void find_changed_attributes(const Graph& before, const Graph& now, std::vector<uint8_t>& changed) {
  changed.resize(now.nodes.size());
  for (uint32_t n = 0; n < now.nodes.size(); ++n) changed[n] = !same_attributes(before, now, n);
}

bool renew_numbers(const Graph& graph, const std::vector<uint8_t>& changed, FusedGroup& group) {
  const bool any = std::ranges::any_of(group.members, [&](uint32_t member) { return changed[member] != 0; });
  return !any || gather_numbers(graph, group, group.numbers, &changed);
}

bool renew_numbers(const Graph& graph, const std::vector<uint8_t>& changed, Plan& plan) {
  return std::ranges::all_of(plan.groups, [&](FusedGroup& group) { return renew_numbers(graph, changed, group); });
}

bool resize_plan(const Graph& before, const Graph& now, const PlanOptions& options, Plan& plan) {
  Scratch& scratch = thread_scratch();
  if (!same_overlaps(before, now, scratch.partial) || !are_batches_small(now, plan)) return false;
  std::vector<uint8_t>& changed = scratch.needed;
  find_changed_attributes(before, now, changed);
  for (FusedGroup& group : plan.groups) {
    const bool same = std::ranges::all_of(
        group.members, [&](uint32_t member) { return same_windows(before, now, now.nodes[member]); });
    if (same) {
      if (!renew_numbers(now, changed, group)) return false;
      continue;
    }
    // Lowers the group anew, so which piece is which was compared as well.
    if (!space_of(now, group, group.space)) return false;
    group.prepared = backend::prepare_fused(group.kernel, group.space, group.launch).ok();
    // Some numbers, such as the count of a mean, follow from sizes.
    if (!gather_numbers(now, group, group.numbers)) return false;
  }
  // Sizes may change at every run.
  PlanOptions quick = options;
  quick.thorough = false;
  plan_host_memory(now, quick, plan, scratch);
  return true;
}

}  // namespace hetero::graph
