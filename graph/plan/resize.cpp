// resize_plan: a plan for other sizes, out of one for the same structure.
//
// What planning decides depends on sizes in three places: how large things are (spaces of fused
// groups, batches, the memory plan), whether two windows of one buffer overlap, and where it is
// faster to run something. The first is done again here, for what changed. The second cannot change
// where every write covers its whole buffer; where one does not, the windows of that buffer must be
// as they were. The third stays as it is, and with it the copies and the order of submission: a
// caller for whom times change much plans anew.

#include "graph/plan/resize.h"

#include <algorithm>
#include <span>

#include "graph/fusion/fusion.h"
#include "graph/ir/compare.h"
#include "graph/plan/passes.h"

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

// What was one transfer of several copies still is, as far as its bytes allow. Per instruction, as
// Scratch::joined.
void find_joined(const Graph& now, const Plan& plan, std::vector<uint8_t>& joined) {
  joined.assign(plan.program.size(), 0);
  for (uint32_t i = 0; i < plan.program.size();) {
    if (!plan.program[i].is_copy()) {
      ++i;
      continue;
    }
    const uint32_t end = end_of_transfer(now, plan, i);
    for (++i; i < end; ++i) joined[i] = 1;
  }
}

// The program as it was before its events were inserted, and `joined` likewise.
void drop_events(Plan& plan, std::vector<uint8_t>& joined) {
  size_t kept = 0;
  for (size_t i = 0; i < plan.program.size(); ++i) {
    if (plan.program[i].is_event()) continue;
    joined[kept] = joined[i];
    plan.program[kept++] = plan.program[i];
  }
  plan.program.resize(kept);
  joined.resize(std::ranges::find(joined, 1) == joined.end() ? 0 : kept);
}

// The tasks of a program that has its copies and batches, and what they take now.
void predict_tasks(const Graph& now, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  scratch.serial.clear();
  for (const Instruction& instruction : plan.program) {
    if (instruction.is_group()) scratch.serial.push_back(instruction);
    for_each_call(plan, instruction, [&](const Instruction& call) { scratch.serial.push_back(call); });
  }
  plan.program.swap(scratch.serial);
  scratch.tasks.build(now, plan, options);
  plan.program.swap(scratch.serial);
  for (const Task& task : scratch.tasks.tasks) {
    if (!task.is_fetch()) scratch.tasks.predict(task, task.device_in(plan), plan);
  }
}

// Memory and events of a plan for several queues. False where it does not fit.
bool lay_out_again(const Graph& now, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  scratch.resident.assign(now.buffers.size(), 0);
  for (BufferId b = 0; b < now.buffers.size(); ++b) {
    for (backend::DeviceIndex d = 1; d < plan.device_count; ++d) {
      if (plan.residence(b, d).home == Home::kBound) scratch.resident[b] |= backend::only(d);
    }
  }
  find_joined(now, plan, scratch.joined);
  drop_events(plan, scratch.joined);
  predict_tasks(now, options, plan, scratch);
  if (has_side_queues(plan)) note_utilizations(now, options, plan);
  for (Return& entry : plan.returns) entry.residence = {};
  order_queues(now, plan, scratch);
  const bool fits = plan_memory(now, options, false, plan, scratch);
  insert_events(plan, scratch);
  scratch.joined.clear();
  return fits;
}

bool same_windows(const Graph& before, const Graph& now, const Node& node) {
  const Operand* const a = before.operands.data() + node.first_operand;
  const Operand* const b = now.operands.data() + node.first_operand;
  for (int i = 0; i < node.operand_count; ++i) {
    if (a[i].window != b[i].window || before.buffers[a[i].buffer].bytes != now.buffers[b[i].buffer].bytes) return false;
  }
  return true;
}

}  // namespace

void find_changed_attributes(const Graph& before, const Graph& now, std::vector<uint8_t>& changed) {
  changed.resize(now.nodes.size());
  for (uint32_t n = 0; n < now.nodes.size(); ++n) {
    changed[n] = !same_arguments(before, before.nodes[n], now, now.nodes[n]);
  }
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
    // What only the CPU can run node by node.
    if (!group.prepared && placement_of(plan, group).device != backend::kCpu) return false;
    // Some numbers, such as the count of a mean, follow from sizes.
    if (!gather_numbers(now, group, group.numbers)) return false;
  }
  // Sizes may change at every run.
  PlanOptions quick = options;
  quick.thorough = false;
  if (!uses_host_only(plan)) return lay_out_again(now, quick, plan, scratch);
  if (options.machine.has_accelerator()) predict_tasks(now, quick, plan, scratch);
  plan_host_memory(now, quick, plan, scratch);
  return true;
}

}  // namespace hetero::graph
