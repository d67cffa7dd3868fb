// Groups of a QueueRun: as one kernel, or member by member where some of what they need is missing.

#include <algorithm>
#include <utility>

#include "graph/fusion/footprint.h"
#include "graph/run/queue_run.h"
#include "graph/run/submit.h"

namespace hetero::graph {

using backend::DeviceIndex;
using backend::kCpu;
using Outcome = RunState::Outcome;

void QueueRun::submit_group(const Instruction& instruction, uint32_t position) {
  const FusedGroup& group = state_->plan().groups[instruction.index];
  GroupTask& task = group_tasks_.emplace_back(prepare_group(group, device_of(instruction.queue)));
  if (instruction.queue == kHostQueue) {
    run_group(task);
    if (clock_ != nullptr) {
      clock_->advance_host(modelled_seconds(state_->graph(), state_->plan(), instruction));
    }
    for (const GroupOperand& operand : group.operands) state_->release(operand.buffer, position);
    return;
  }
  launch(position, group_tasks_.size() - 1, {group_data_.data() + task.first_data, group.operands.size()},
         std::as_bytes(std::span(group.numbers)));
}

// Finds memory for the group's operands, and what the host knows to be broken among what it loads.
QueueRun::GroupTask QueueRun::prepare_group(const FusedGroup& group, DeviceIndex device) {
  GroupTask task{.group = &group,
                 .first_data = static_cast<uint32_t>(group_data_.size()),
                 .first_broken = static_cast<uint32_t>(group_broken_.size()),
                 .broken_count = 0,
                 .device = device,
                 .failure = kHealthy};
  for (const GroupOperand& operand : group.operands) {
    if (state_->address(operand.buffer, device) == nullptr) {
      task.failure = state_->earlier(task.failure, state_->provide(group.members.back(), operand.buffer, device));
    }
    group_data_.push_back(state_->address(operand.buffer, device));
    const FailureId broken = broken_[state_->plan().place_of(operand.buffer, device)];
    if (operand.loads && broken != kHealthy) group_broken_.push_back({operand.buffer, broken});
  }
  task.broken_count = static_cast<uint32_t>(group_broken_.size()) - task.first_broken;
  for (const GroupOperand& operand : group.operands) {
    if (operand.stores && !operand.loads) broken_[state_->plan().place_of(operand.buffer, device)] = kHealthy;
  }
  return task;
}

// On the thread of the task's queue.
void QueueRun::run_group(GroupTask& task) {
  const FusedGroup& group = *task.group;
  const size_t poisoned = state_->has_failures() ? find_poison(task) : 0;
  if (poisoned == group.members.size() || task.failure != kHealthy) return;
  void** const data = group_data_.data() + task.first_data;
  backend::Device& device = state_->device(task.device);
  if (poisoned != 0 && !device.runs_host_kernels() && would_spoil(task)) return skip_group(task);
  if (task.device != kCpu) translate(device, {data, group.operands.size()}, data);
  Result<bool> passed = false;
  if (poisoned == 0 || !device.runs_host_kernels()) passed = run_as_one(group, device, data);
  task.unfused = passed.ok() && !passed.value();
  if (task.unfused) return run_members(task);
  const FailureId failure = passed.ok() ? kHealthy : state_->add_failure(group.members.back(), passed.status());
  for (const uint32_t n : group.members) {
    const bool ran = is_tail(state_->graph(), n) ? outcomes_[n] == Outcome::kRan : outcomes_[n] != Outcome::kSkipped;
    if (!ran) continue;
    outcomes_[n] = failure == kHealthy ? Outcome::kRan : Outcome::kFailed;
    if (failure != kHealthy) mark_outputs(state_->graph().nodes[n], failure);
  }
}

// As if they had never been fused, with the CPU's kernels.
void QueueRun::run_members(const GroupTask& task) {
  UnfusedMemory memory;
  for (size_t m = 0; m < task.group->members.size(); ++m) run_member(task, m, memory);
}

void QueueRun::run_member(const GroupTask& task, size_t member, UnfusedMemory& memory) {
  const Graph& graph = state_->graph();
  const uint32_t n = task.group->members[member];
  const Node& node = graph.nodes[n];
  const bool tail = is_tail(graph, n);
  FailureId failure = poison_of_member(task, member);
  if (failure != kHealthy) {
    skip_member(n, failure);
  } else {
    std::vector<void*> data(node.operand_count);
    Status status = memory.resolve(graph, *task.group, group_data_.data() + task.first_data, node, state_->device(kCpu),
                                   data.data());
    if (status.ok()) {
      failure = call({n, tail ? Part::kTail : Part::kWhole, task.device, kHealthy}, data.data(), nullptr);
    } else {
      failure = state_->add_failure(n, std::move(status));
    }
  }
  if (failure != kHealthy || state_->has_failures()) mark_outputs(node, failure);
}

// Marks the outputs of all members: what depends on something poisoned is. Returns how many do.
size_t QueueRun::find_poison(const GroupTask& task) {
  size_t poisoned = 0;
  for (size_t m = 0; m < task.group->members.size(); ++m) {
    const uint32_t n = task.group->members[m];
    const FailureId failure = poison_of_member(task, m);
    mark_outputs(state_->graph().nodes[n], failure);
    poisoned += failure != kHealthy;
    if (failure != kHealthy) skip_member(n, failure);
  }
  return poisoned;
}

// Whether a poisoned member is to change what was there before the program. REQUIRES: find_poison.
bool QueueRun::would_spoil(const GroupTask& task) const {
  const Graph& graph = state_->graph();
  const auto is_changed = [&](const Operand& operand) {
    const Buffer& buffer = graph.buffers[operand.buffer];
    return operand.writes() && buffer.valid_on != 0 && buffer.escapes;
  };
  for (size_t m = 0; m < task.group->members.size(); ++m) {
    const Node& node = graph.nodes[task.group->members[m]];
    const Operand* const operands = graph.operands_of(node);
    if (std::any_of(operands, operands + node.operand_count, is_changed) && poison_of_member(task, m) != kHealthy)
      return true;
  }
  return false;
}

void QueueRun::skip_group(const GroupTask& task) {
  FailureId failure = kHealthy;
  for (size_t m = 0; m < task.group->members.size(); ++m) {
    failure = state_->earlier(failure, poison_of_member(task, m));
  }
  for (const uint32_t n : task.group->members) {
    skip_member(n, failure);
    mark_outputs(state_->graph().nodes[n], failure);
  }
}

FailureId QueueRun::poison_of_member(const GroupTask& task, size_t member) const {
  const uint32_t n = task.group->members[member];
  const Node& node = state_->graph().nodes[n];
  const bool tail = is_tail(state_->graph(), n);
  const FailureId failure = state_->earlier(task.failure, tail ? poison_of_tail(node) : poison_of_inputs(node));
  return task.broken_count == 0 ? failure : state_->earlier(failure, broken_inputs(task, member));
}

// What became of the body of a node with a tail is known already.
void QueueRun::skip_member(uint32_t node, FailureId failure) {
  if (!is_tail(state_->graph(), node)) outcomes_[node] = Outcome::kSkipped;
  state_->raise(failure);
}

// What the host knows to be broken of the bytes that a member reads as they were before the group.
FailureId QueueRun::broken_inputs(const GroupTask& task, size_t member) const {
  const Graph& graph = state_->graph();
  const std::vector<uint32_t>& members = task.group->members;
  const Node& node = graph.nodes[members[member]];
  const bool tail = is_tail(graph, members[member]);
  FailureId failure = kHealthy;
  for (int i = 0; i < node.operand_count; ++i) {
    const Operand* const o = graph.operands_of(node) + i;
    if (tail ? !in_tail(graph, node, i) : !o->reads()) continue;
    const bool made_here = std::any_of(members.begin(), members.begin() + static_cast<long>(member), [&](uint32_t n) {
      const Node& other = graph.nodes[n];
      return std::any_of(graph.operands_of(other), graph.operands_of(other) + other.operand_count,
                         [o](const Operand& made) { return made.buffer == o->buffer && made.writes(); });
    });
    if (made_here) continue;
    for (uint32_t k = task.first_broken; k < task.first_broken + task.broken_count; ++k) {
      if (group_broken_[k].buffer == o->buffer) failure = state_->earlier(failure, group_broken_[k].failure);
    }
  }
  return failure;
}

// Its members are one kernel. Those with tails have been counted for their bodies.
void QueueRun::count_group(const GroupTask& task, RunCounts& counts) const {
  const FusedGroup& group = *task.group;
  int64_t ran = 0;
  int64_t tails = 0;
  for (const uint32_t n : group.members) {
    ran += outcomes_[n] == Outcome::kRan;
    tails += outcomes_[n] == Outcome::kRan && is_tail(state_->graph(), n);
  }
  if (task.unfused) counts.kernels[task.device] += tails;
  if (ran == 0 || task.unfused) return;
  counts.kernels[task.device] += 1 - (ran - tails);
  ++counts.fused_groups;
  counts.fused_nodes += ran;
  counts.compiled_groups += group.launch.is_compiled();
}

}  // namespace hetero::graph
