#include "graph/run/queue_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "backend/fused/call.h"
#include "graph/fusion/footprint.h"

namespace hetero::graph {

using backend::DeviceIndex;
using backend::kCpu;
using Outcome = RunState::Outcome;

Status QueueRun::run(RunState& state, RunCounts& counts, RunTimes* times, const Uploads* uploads,
                     std::unique_ptr<Segments>* segments) {
  begin(state);
  find_clock();
  begun_ = now();
  const bool timed = times != nullptr && clock_ == nullptr;
  if (timed) timer_.begin(state.device(kTimed));
  segments_ = nullptr;
  if (segments != nullptr) {
    if (*segments == nullptr || !(*segments)->belong_to(*this)) {
      *segments = std::make_unique<Segments>(state.graph(), state.plan(), *this);
    }
    segments_ = segments->get();
    segments_->begin_run();
  }
  walk(counts, times);
  if (segments_ != nullptr) segments_->finish_launches();
  if (uploads != nullptr) submit_uploads(*uploads);
  synchronize();
  if (times != nullptr) times->seconds = now() - begun_;
  if (timed) timer_.read(times->spans);
  finish_uploads(counts);
  if (segments_ != nullptr) note_launched_together(counts);
  settle(counts);
  Status first = state.first_failure();
  if (first.ok()) first = lost_;
  if (segments_ != nullptr) segments_->end_run(first.ok() && !state.has_failures());
  return first;
}

// Devices of one simulated machine have one clock.
void QueueRun::find_clock() {
  backend::Device& first = state_->device(kTimed);
  clock_ = first.has_virtual_clock() ? &first : nullptr;
}

void QueueRun::walk(RunCounts& counts, RunTimes* times) {
  const RunState& state = *state_;
  const bool timed = times != nullptr && clock_ == nullptr;
  const std::vector<Instruction>& program = state.plan().program;
  for (uint32_t position = 0, end = 0; position < program.size(); position = end) {
    const Instruction& instruction = program[position];
    end = position + 1;
    used_queues_ |= uint64_t{1} << instruction.queue;
    const bool on_host = instruction.queue == kHostQueue;
    const bool noted = times != nullptr && (clock_ != nullptr || on_host);
    const bool by_events = timed && device_of(instruction.queue) == kTimed &&
                           instruction.kind != Instruction::Kind::kRecord &&
                           instruction.kind != Instruction::Kind::kWait;
    if (by_events) timer_.before(position, queue(instruction.queue));
    if (noted) times->spans[position].begin = begin_of(instruction.queue) - begun_;
    switch (instruction.kind) {
      case Instruction::Kind::kRun:
      case Instruction::Kind::kBody:
        submit_run(instruction, position);
        break;
      case Instruction::Kind::kCopy:
        end = end_of_transfer(state.graph(), state.plan(), position);
        submit_transfer({&instruction, end - position}, counts);
        break;
      case Instruction::Kind::kRecord:
        record(instruction, counts);
        break;
      case Instruction::Kind::kWait:
        wait(instruction, counts);
        break;
      case Instruction::Kind::kFused:
        submit_group(instruction, position);
        break;
      case Instruction::Kind::kBatch:
        lose(Status(ErrorClass::kInternal, "a batch in a program of several queues"));
        break;
    }
    if (by_events) timer_.after(queue(instruction.queue));
    // A queue whose clock has not moved is behind the host's.
    if (noted) {
      Span& span = times->spans[position];
      span.end = std::max(span.begin, end_of(instruction.queue) - begun_);
      for (uint32_t other = position + 1; other < end; ++other) times->spans[other] = {span.end, span.end};
    }
  }
}

double QueueRun::now() const {
  if (clock_ != nullptr) return clock_->host_seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// When what is submitted to the queue now begins.
double QueueRun::begin_of(QueueId queue) const {
  if (clock_ == nullptr || queue == kHostQueue) return now();
  return std::max(now(), end_of(queue));
}

// When what was submitted to the queue last ends.
double QueueRun::end_of(QueueId queue) const {
  if (clock_ == nullptr || queue == kHostQueue) return now();
  return state_->device(device_of(queue)).queue_seconds(kind_of(queue));
}

void QueueRun::begin(RunState& state) {
  state_ = &state;
  const Graph& graph = state.graph();
  const size_t buffers = graph.buffers.size();
  lost_ = Status();
  used_queues_ = 0;
  task_of_.resize(state.plan().program.size());
  tasks_.clear();
  tasks_.reserve(graph.nodes.size());
  group_tasks_.clear();
  group_tasks_.reserve(state.plan().groups.size());
  size_t group_operands = 0;
  for (const FusedGroup& group : state.plan().groups) group_operands += group.operands.size();
  group_data_.clear();
  group_data_.reserve(group_operands);
  group_broken_.clear();
  group_broken_.reserve(group_operands);
  data_.resize(graph.operands.size());
  slot_before_.resize(graph.operands.size());
  slot_of_.resize(buffers);
  for (uint32_t b = 0; b < buffers; ++b) slot_of_[b] = b;
  slots_.assign(buffers + graph.operands.size(), kHealthy);
  for (const auto& [buffer, failure] : state.poisoned_on_entry()) slots_[buffer] = failure;
  broken_.assign(buffers * state.plan().device_count, kHealthy);
  bodies_.assign(graph.nodes.size(), kHealthy);
  outcomes_.assign(graph.nodes.size(), Outcome::kNotRun);
  events_.assign(state.plan().event_count, {nullptr, 0});
  std::ranges::fill(pool_used_, 0);
  // In the order of the graph: a value may be read after the next one was submitted on another device.
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (state.plan().live[n]) assign_slots(graph.nodes[n]);
  }
}

backend::Queue& QueueRun::queue(QueueId id) const { return state_->device(device_of(id)).queue(kind_of(id)); }

void QueueRun::submit_run(const Instruction& instruction, uint32_t position) {
  const Node& node = state_->graph().nodes[instruction.index];
  const DeviceIndex device = device_of(instruction.queue);
  bool brings = false;
  const FailureId failure = prepare(instruction.index, device, brings);
  NodeTask& task = tasks_.emplace_back(NodeTask{this, instruction.index, part_of(instruction), device, failure});
  if (instruction.queue == kHostQueue) {
    if (brought_.size() < node.operand_count) brought_.resize(node.operand_count);
    run_node(task, brought_.data(), brings);
    if (clock_ != nullptr) {
      clock_->advance_host(modelled_seconds(state_->graph(), state_->plan(), instruction));
    }
    state_->release(node, position);
    return;
  }
  launch(position, tasks_.size() - 1, {data_.data() + node.first_operand, node.operand_count},
         std::as_bytes(std::span(state_->graph().attributes).subspan(node.attribute_offset, node.attribute_bytes)));
}

void QueueRun::launch(uint32_t position, size_t index, std::span<void* const> addresses,
                      std::span<const std::byte> numbers) {
  task_of_[position] = static_cast<uint32_t>(index);
  if (segments_ == nullptr) return launch_alone(position);
  segments_->launch(position, addresses, numbers);
}

backend::Task QueueRun::prediction_of(uint32_t position) const {
  const Instruction& instruction = state_->plan().program[position];
  backend::Task task{};
  task.seconds = modelled_seconds(state_->graph(), state_->plan(), instruction);
  task.utilization = modelled_utilization(state_->plan(), instruction);
  return task;
}

void QueueRun::launch_alone(uint32_t position) {
  const Instruction& instruction = state_->plan().program[position];
  backend::Task task = prediction_of(position);
  if (instruction.kind == Instruction::Kind::kFused) {
    task.run = [](void* context) {
      auto& submitted = *static_cast<GroupTask*>(context);
      submitted.owner->run_group(submitted);
    };
    task.context = &group_tasks_[task_of_[position]];
  } else {
    task.run = [](void* context) {
      const auto& submitted = *static_cast<const NodeTask*>(context);
      submitted.owner->run_node(submitted, nullptr, false);
    };
    task.context = &tasks_[task_of_[position]];
  }
  if (Status status = queue(instruction.queue).launch(task); !status.ok()) not_launched(position, std::move(status));
}

// The host marks the outputs in the task's stead.
void QueueRun::not_launched(uint32_t position, Status status) {
  const Instruction& instruction = state_->plan().program[position];
  if (instruction.kind != Instruction::Kind::kFused) {
    return note_end(tasks_[task_of_[position]], state_->add_failure(instruction.index, std::move(status)));
  }
  const FusedGroup& group = state_->plan().groups[instruction.index];
  const FailureId failure = state_->add_failure(group.members.back(), std::move(status));
  for (const uint32_t n : group.members) mark_outputs(state_->graph().nodes[n], failure);
}

void QueueRun::replay(uint32_t position) {
  if (state_->plan().program[position].kind == Instruction::Kind::kFused) {
    run_group(group_tasks_[task_of_[position]]);
  } else {
    run_node(tasks_[task_of_[position]], nullptr, false);
  }
}

// A device that calls the tasks now does so on this thread, when everything that was launched has run.
Result<std::unique_ptr<backend::Segment>> QueueRun::record(QueueId id, std::span<const backend::Task> tasks) {
  state_->begin_rehearsal();
  Result<std::unique_ptr<backend::Segment>> segment = queue(id).record_segment(tasks);
  const Status failure = state_->end_rehearsal();
  return failure.ok() ? std::move(segment) : failure;
}

// Where the device launches what it has recorded, no task says that it ran.
void QueueRun::note_launched_together(RunCounts& counts) {
  const Plan& plan = state_->plan();
  const auto ran = [&](uint32_t node) {
    if (outcomes_[node] == Outcome::kNotRun) outcomes_[node] = Outcome::kRan;
  };
  for (const uint32_t position : segments_->launched_together()) {
    const Instruction& instruction = plan.program[position];
    if (instruction.kind == Instruction::Kind::kFused) {
      for (const uint32_t n : plan.groups[instruction.index].members) ran(n);
    } else {
      ran(instruction.index);
    }
  }
  counts.segments += segments_->launches();
}

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
  GroupTask task{.owner = this,
                 .group = &group,
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
  if (task.device != kCpu) {
    for (size_t k = 0; k < group.operands.size(); ++k) data[k] = device.kernel_address(data[k]);
  }
  Result<bool> passed = false;
  if (group.prepared && (poisoned == 0 || !device.runs_host_kernels())) {
    passed = device.run_fused({group.kernel, group.space, group.launch, data, group.numbers.data()});
  }
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
      failure = call(n, tail ? Part::kTail : Part::kWhole, task.device, data.data(), nullptr);
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

// Finds memory for the node's operands, and what the host knows to be broken among them.
FailureId QueueRun::prepare(uint32_t index, DeviceIndex device, bool& brings) {
  const Graph& graph = state_->graph();
  const Node& node = graph.nodes[index];
  FailureId failure = state_->resolve(index, device, data_.data() + node.first_operand, brings);
  const Operand* const operands = graph.operands_of(node);
  const auto overwritten = [&](const Operand& operand) {
    return operand.writes() && overwrites(*graph.windows, operand, graph.buffers[operand.buffer]);
  };
  for (int i = 0; i < node.operand_count; ++i) {
    if (overwritten(operands[i])) continue;
    failure = state_->earlier(failure, broken_[state_->plan().place_of(operands[i].buffer, device)]);
  }
  for (int i = 0; i < node.operand_count; ++i) {
    if (overwritten(operands[i])) broken_[state_->plan().place_of(operands[i].buffer, device)] = kHealthy;
  }
  return failure;
}

void QueueRun::assign_slots(const Node& node) {
  const Graph& graph = state_->graph();
  const Operand* const operands = graph.operands_of(node);
  for (int i = 0; i < node.operand_count; ++i) {
    slot_before_[node.first_operand + i] = slot_of_[operands[i].buffer];
  }
  for (int i = 0; i < node.operand_count; ++i) {
    if (!operands[i].writes()) continue;
    const uint32_t index = node.first_operand + i;
    // A second partial write of one node to one buffer goes on from the first.
    if (!operands[i].reads()) slot_before_[index] = slot_of_[operands[i].buffer];
    slot_of_[operands[i].buffer] = static_cast<uint32_t>(graph.buffers.size()) + index;
  }
}

// On the thread of the task's queue.
void QueueRun::run_node(const NodeTask& task, backend::Block* brought, bool brings) {
  const Graph& graph = state_->graph();
  const Node& node = graph.nodes[task.node];
  void** const data = data_.data() + node.first_operand;
  FailureId failure = task.failure;
  if (failure == kHealthy && state_->has_failures()) {
    failure = poison_of_inputs(node);
    if (failure != kHealthy) {
      outcomes_[task.node] = Outcome::kSkipped;
      state_->raise(failure);
    }
  }
  if (failure == kHealthy) {
    if (task.device != kCpu) {
      backend::Device& device = state_->device(task.device);
      for (int i = 0; i < node.operand_count; ++i) data[i] = device.kernel_address(data[i]);
    }
    failure = call(task.node, task.part, task.device, data, brought);
  }
  if (brings) {
    if (failure == kHealthy) failure = state_->collect(task.node, data, brought);
    for (int i = 0; i < node.operand_count; ++i) brought[i].reset();
  }
  if (failure != kHealthy || state_->has_failures()) note_end(task, failure);
}

// What a body has made is nobody's but its tail's. The slots are the tail's to set, and the host may have set them already where the tail was not submitted.
void QueueRun::note_end(const NodeTask& task, FailureId failure) {
  if (task.part == Part::kBody) {
    bodies_[task.node] = failure;
  } else {
    mark_outputs(state_->graph().nodes[task.node], failure);
  }
}

FailureId QueueRun::call(uint32_t index, Part part, DeviceIndex device, void* const* data, backend::Block* brought) {
  const Graph& graph = state_->graph();
  const Node& node = graph.nodes[index];
  const FailureId failure =
      state_->call_kernel(index, {.node = &node,
                                  .operands = graph.operands_of(node),
                                  .data = data,
                                  .brought = brought,
                                  .attributes = graph.attributes.data() + node.attribute_offset,
                                  .windows = graph.windows,
                                  .traits = &op_table()[node.op],
                                  .bindings = device == kCpu ? state_->unwritten_bindings() : nullptr,
                                  .part = part,
                                  .by_device = device != kCpu && !state_->device(device).runs_host_kernels()});
  outcomes_[index] = failure == kHealthy ? Outcome::kRan : Outcome::kFailed;
  return failure;
}

// Of what the body has written, and of what the tail reads beside.
FailureId QueueRun::poison_of_tail(const Node& node) const {
  const Graph& graph = state_->graph();
  const Operand* const operands = graph.operands_of(node);
  FailureId failure = bodies_[static_cast<size_t>(&node - graph.nodes.data())];
  for (int i = 0; i < node.operand_count; ++i) {
    const FailureId read = slots_[slot_before_[node.first_operand + i]];
    if (!operands[i].writes() && read != kHealthy && in_tail(graph, node, i)) {
      failure = state_->earlier(failure, read);
    }
  }
  return failure;
}

FailureId QueueRun::poison_of_inputs(const Node& node) const {
  const Operand* const operands = state_->graph().operands_of(node);
  FailureId failure = kHealthy;
  for (int i = 0; i < node.operand_count; ++i) {
    if (!operands[i].reads()) continue;
    failure = state_->earlier(failure, slots_[slot_before_[node.first_operand + i]]);
  }
  return failure;
}

void QueueRun::mark_outputs(const Node& node, FailureId failure) {
  const Graph& graph = state_->graph();
  const Operand* const operands = graph.operands_of(node);
  for (int i = 0; i < node.operand_count; ++i) {
    if (!operands[i].writes()) continue;
    const uint32_t index = node.first_operand + i;
    const bool whole = overwrites(*graph.windows, operands[i], graph.buffers[operands[i].buffer]);
    slots_[graph.buffers.size() + index] = failure != kHealthy || whole ? failure : slots_[slot_before_[index]];
  }
}

void QueueRun::submit_transfer(std::span<const Instruction> copies, RunCounts& counts) {
  ranges_.clear();
  moved_.clear();
  for (const Instruction& copy : copies) prepare_copy(copy);
  if (ranges_.empty()) return;
  const DeviceIndex to = copies.front().to;
  backend::Queue& link = queue(copies.front().queue);
  const backend::CopyRange& first = ranges_.front();
  Status status =
      ranges_.size() == 1 ? link.copy(first.destination, first.source, first.bytes) : link.copy_batch(ranges_);
  if (!status.ok()) {
    const FailureId failure =
        state_->add_failure(static_cast<uint32_t>(state_->graph().nodes.size()), std::move(status));
    for (const BufferId buffer : moved_) broken_[state_->plan().place_of(buffer, to)] = failure;
    return;
  }
  ++counts.transfers;
  counts.copies += static_cast<int64_t>(ranges_.size());
  for (const backend::CopyRange& range : ranges_) counts.copied_bytes[to] += static_cast<int64_t>(range.bytes);
}

// Adds to the transfer what there is to be copied.
void QueueRun::prepare_copy(const Instruction& instruction) {
  const BufferId buffer = instruction.index;
  const FailureId source = broken_[state_->plan().place_of(buffer, instruction.from)];
  FailureId& target = broken_[state_->plan().place_of(buffer, instruction.to)];
  target = source;
  const void* const from = state_->address(buffer, instruction.from);
  if (instruction.stay != 0) state_->come_back(state_->plan().returns[instruction.stay - 1]);
  // Without memory there, whoever should have written it has failed, and the value's slot says so.
  if (source != kHealthy || from == nullptr) return;
  if (state_->address(buffer, instruction.to) == nullptr) {
    target = state_->provide(static_cast<uint32_t>(state_->graph().nodes.size()), buffer, instruction.to);
    if (target != kHealthy) return;
  }
  ranges_.push_back({state_->address(buffer, instruction.to), from, state_->graph().buffers[buffer].bytes});
  moved_.push_back(buffer);
}

backend::Event* QueueRun::next_event(DeviceIndex d) {
  backend::Device& device = state_->device(d);
  if (pool_owner_[d] != &device) {
    pool_[d].clear();
    pool_owner_[d] = &device;
  }
  if (pool_used_[d] == pool_[d].size()) pool_[d].push_back(device.create_event());
  return pool_[d][pool_used_[d]++].get();
}

void QueueRun::record(const Instruction& instruction, RunCounts& counts) {
  backend::Event* const event = next_event(device_of(instruction.queue));
  const bool recorded = event != nullptr && queue(instruction.queue).record(*event).ok();
  events_[instruction.index] = {recorded ? event : nullptr, instruction.queue};
  ++counts.events;
}

void QueueRun::wait(const Instruction& instruction, RunCounts& counts) {
  const auto [event, recorded_on] = events_[instruction.index];
  ++counts.waits;
  if (event != nullptr && queue(instruction.queue).wait(*event).ok()) return;
  // Without the event the host keeps the order: it goes on when all that could be meant has run.
  if (Status status = queue(recorded_on).synchronize(); !status.ok()) lose(std::move(status));
}

void QueueRun::lose(Status status) {
  if (lost_.ok()) lost_ = std::move(status);
}

void QueueRun::synchronize() {
  const QueueId queues = queue_count(state_->plan().device_count);
  for (QueueId id = 0; id < queues; ++id) {
    if ((used_queues_ >> id & 1) == 0) continue;
    const bool shared = id == upload_queue_ && own_copies_ != nullptr;
    Status status = shared ? own_copies_->synchronize() : queue(id).synchronize();
    if (!status.ok()) lose(std::move(status));
  }
}

// Behind the program's own copies. What cannot be had is left out.
void QueueRun::submit_uploads(const Uploads& uploads) {
  uploads_to_ = uploads.to;
  upload_queue_ = queue_id(uploads.to, backend::QueueKind::kHostToDevice);
  backend::Device& accelerator = state_->device(uploads.to);
  backend::Queue& link = queue(upload_queue_);
  for (const Uploads::Entry& entry : uploads.entries) {
    const auto held = static_cast<uint64_t>(accelerator.memory_stats().allocated_bytes);
    if (held > uploads.most_bytes || entry.bytes > uploads.most_bytes - held) continue;
    Result<backend::Block> block = accelerator.allocate(entry.bytes);
    if (!block.ok()) continue;
    if (uploads_.empty() && (used_queues_ >> upload_queue_ & 1) != 0) {
      own_copies_ = next_event(uploads_to_);
      if (own_copies_ == nullptr || !link.record(*own_copies_).ok()) {
        own_copies_ = nullptr;
        return;
      }
    }
    uploads_.push_back({entry.binding, std::move(block.value()), entry.bytes});
    const Upload& upload = uploads_.back();
    if (link.copy(upload.block.data(), entry.binding->blocks[kCpu].data(), entry.bytes).ok()) continue;
    uploads_.pop_back();
  }
}

// Where their copies take longer than the program, whoever waits for its results waits for them as well, and the next program does not.
void QueueRun::finish_uploads(RunCounts& counts) {
  own_copies_ = nullptr;
  if (uploads_.empty()) return;
  if (queue(upload_queue_).synchronize().ok()) {
    for (Upload& upload : uploads_) {
      upload.binding->blocks[uploads_to_] = std::move(upload.block);
      upload.binding->valid_on |= backend::only(uploads_to_);
      counts.copied_bytes[uploads_to_] += static_cast<int64_t>(upload.bytes);
    }
    counts.uploads_ahead += static_cast<int64_t>(uploads_.size());
  }
  uploads_.clear();
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

void QueueRun::settle(RunCounts& counts) {
  const Graph& graph = state_->graph();
  const Plan& plan = state_->plan();
  for (size_t n = 0; n < outcomes_.size(); ++n) {
    counts.skipped += outcomes_[n] == Outcome::kSkipped;
    counts.kernels[plan.placements[n].device] += outcomes_[n] == Outcome::kRan || outcomes_[n] == Outcome::kFailed;
  }
  for (const GroupTask& task : group_tasks_) count_group(task, counts);
  FailureId lost = kHealthy;
  if (!lost_.ok()) lost = state_->add_failure(static_cast<uint32_t>(graph.nodes.size()), lost_);
  const bool failures = state_->has_failures();
  if (failures) state_->find_written(outcomes_, written_);
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    bool touched = false;
    backend::DeviceSet valid = plan.valid_after[b];
    FailureId failure = slots_[slot_of_[b]];
    FailureId broken = kHealthy;
    for (DeviceIndex d = 0; d < plan.device_count; ++d) {
      touched |= plan.residence(b, d).home != Home::kNone;
      if (!backend::contains(valid, d) || broken_[plan.place_of(b, d)] == kHealthy) continue;
      broken = broken_[plan.place_of(b, d)];
      valid &= ~backend::only(d);
    }
    if (state_->binding(b) == nullptr || !touched) continue;
    if (failure == kHealthy && valid == 0) failure = broken;
    backend::DeviceSet kept = state_->binding(b)->valid_on;
    if (failures && written_[b] != 0) {
      failure = state_->earlier(failure, lost);
      kept = lost == kHealthy ? written_[b] : backend::DeviceSet{0};
    }
    state_->settle(b, failure, valid, kept);
  }
}

}  // namespace hetero::graph
