#include "graph/run/queue_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "graph/fusion/footprint.h"
#include "graph/run/submit.h"

namespace hetero::graph {

using backend::DeviceIndex;
using backend::kCpu;
using Outcome = RunState::Outcome;

Status QueueRun::run(RunState& state, RunCounts& counts, RunTimes* times, const Uploads* uploads,
                     std::unique_ptr<Segments>* segments) {
  begin(state);
  find_clock();
  worker_clock_.begin(clock_, state.plan().event_count);
  times_ = times;
  begun_ = now();
  const bool timed = times != nullptr && clock_ == nullptr && has_timed_device();
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
  if (uploads != nullptr && !uploads->entries.empty()) submit_uploads(*uploads);
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

bool QueueRun::has_timed_device() const { return state_->plan().device_count > kTimed; }

// Devices of one simulated machine have one clock.
void QueueRun::find_clock() {
  clock_ = has_timed_device() && state_->device(kTimed).has_virtual_clock() ? &state_->device(kTimed) : nullptr;
}

void QueueRun::walk(RunCounts& counts, RunTimes* times) {
  const RunState& state = *state_;
  const bool timed = times != nullptr && clock_ == nullptr;
  const std::vector<Instruction>& program = state.plan().program;
  for (uint32_t position = 0, end = 0; position < program.size(); position = end) {
    const Instruction& instruction = program[position];
    end = position + 1;
    used_queues_.set(instruction.queue);
    const bool on_host = instruction.queue == kHostQueue;
    const bool noted = times != nullptr && (clock_ != nullptr || on_host);
    const bool by_events = timed && device_of(instruction.queue) == kTimed && !instruction.is_event();
    if (by_events) timer_.before(position, queue(instruction.queue));
    if (noted) times->spans[position].begin = begin_of(instruction.queue) - begun_;
    switch (instruction.kind) {
      case Instruction::Kind::kRun:
      case Instruction::Kind::kBody:
        submit_call(instruction, position);
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
  if (queue == kWorkerQueue) return worker_clock_.seconds();
  return state_->device(device_of(queue)).queue_seconds(kind_of(queue));
}

void QueueRun::begin(RunState& state) {
  state_ = &state;
  const Graph& graph = state.graph();
  const size_t buffers = graph.buffers.size();
  lost_ = Status();
  used_queues_.reset();
  task_of_.resize(state.plan().program.size());
  launches_.resize(state.plan().program.size());
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
  // In the order of the graph: a value may be read after the next one was submitted on another
  // device.
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (state.plan().live[n]) assign_slots(graph.nodes[n]);
  }
  for (const Instruction& instruction : state.plan().program) {
    if (instruction.queue != kWorkerQueue) continue;
    for_each_touch(graph, state.plan(), instruction, [&](const TouchedBytes& bytes) { state.keep(bytes.buffer); });
  }
}

backend::Queue& QueueRun::queue(QueueId id) const { return state_->device(device_of(id)).queue(kind_of(id)); }

void QueueRun::submit_call(const Instruction& instruction, uint32_t position) {
  const Node& node = state_->graph().nodes[instruction.index];
  const DeviceIndex device = device_of(instruction.queue);
  bool brings = false;
  const FailureId failure = prepare(instruction.index, device, brings);
  NodeTask& task = tasks_.emplace_back(NodeTask{instruction.index, instruction.part(), device, failure});
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
  const bool on_worker = state_->plan().program[position].queue == kWorkerQueue;
  if (segments_ == nullptr || on_worker) return launch_alone(position);
  segments_->launch(position, addresses, numbers);
}

void QueueRun::launch_alone(uint32_t position) {
  launches_[position] = {this, position};
  const backend::Task task = task_of(state_->graph(), state_->plan(), launches_[position]);
  const QueueId id = state_->plan().program[position].queue;
  if (Status status = queue(id).launch(task); !status.ok()) return not_launched(position, std::move(status));
  if (id == kWorkerQueue) worker_clock_.run(task.seconds);
}

// Launcher
void QueueRun::run_launch(uint32_t position, void* const* /*addresses*/) {
  if (state_->plan().program[position].queue == kWorkerQueue) {
    run_host_task(position);
  } else if (state_->plan().program[position].is_group()) {
    run_group(group_tasks_[task_of_[position]]);
  } else {
    run_node(tasks_[task_of_[position]], nullptr, false);
  }
}

// Without a virtual clock it notes its own time, since no device does.
void QueueRun::run_host_task(uint32_t position) {
  const bool noted = times_ != nullptr && clock_ == nullptr;
  if (noted) times_->spans[position].begin = now() - begun_;
  run_node(tasks_[task_of_[position]], nullptr, false);
  if (noted) times_->spans[position].end = now() - begun_;
}

// The host marks the outputs in the task's stead.
void QueueRun::not_launched(uint32_t position, Status status) {
  const Instruction& instruction = state_->plan().program[position];
  if (!instruction.is_group()) {
    return note_end(tasks_[task_of_[position]], state_->add_failure(instruction.index, std::move(status)));
  }
  const FusedGroup& group = state_->plan().groups[instruction.index];
  const FailureId failure = state_->add_failure(group.members.back(), std::move(status));
  for (const uint32_t n : group.members) mark_outputs(state_->graph().nodes[n], failure);
}

// A device that calls the tasks now does so on this thread, when everything that was launched has
// run.
Result<std::unique_ptr<backend::Segment>> QueueRun::record(QueueId id, std::span<Launch> launches) {
  state_->begin_rehearsal();
  Result<std::unique_ptr<backend::Segment>> segment =
      record_tasks(state_->graph(), state_->plan(), launches, queue(id));
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
    for_each_node(plan, plan.program[position], ran);
  }
  counts.segments += segments_->launches();
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
    if (task.device != kCpu) translate(state_->device(task.device), {data, node.operand_count}, data);
    failure = call(task, data, brought);
  }
  if (brings) {
    if (failure == kHealthy) failure = state_->collect(task.node, data, brought);
    for (int i = 0; i < node.operand_count; ++i) brought[i].reset();
  }
  if (failure != kHealthy || state_->has_failures()) note_end(task, failure);
}

// What a body has made is nobody's but its tail's. The slots are the tail's to set, and the host
// may have set them already where the tail was not submitted.
void QueueRun::note_end(const NodeTask& task, FailureId failure) {
  if (task.part == Part::kBody) {
    bodies_[task.node] = failure;
  } else {
    mark_outputs(state_->graph().nodes[task.node], failure);
  }
}

FailureId QueueRun::call(const NodeTask& task, void* const* data, backend::Block* brought) {
  const Graph& graph = state_->graph();
  const Node& node = graph.nodes[task.node];
  Invocation invocation = call_of(graph, node, task.part);
  invocation.data = data;
  invocation.brought = brought;
  // What is kept with a binding belongs to the submitting thread.
  const bool on_host = task.device == kCpu && !op_table()[node.op].host_task;
  invocation.bindings = on_host ? state_->unwritten_bindings() : nullptr;
  invocation.by_device = is_by_device(task.device, state_->device(task.device));
  const FailureId failure = state_->call_kernel(task.node, invocation);
  outcomes_[task.node] = failure == kHealthy ? Outcome::kRan : Outcome::kFailed;
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
  if (Status status = submit_copies(queue(copies.front().queue), ranges_); !status.ok()) {
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
  worker_clock_.record(instruction, state_->device(device_of(instruction.queue)), kind_of(instruction.queue));
  ++counts.events;
}

void QueueRun::wait(const Instruction& instruction, RunCounts& counts) {
  const auto [event, recorded_on] = events_[instruction.index];
  ++counts.waits;
  const bool waits = event != nullptr && queue(instruction.queue).wait(*event).ok();
  worker_clock_.wait(instruction, state_->device(device_of(instruction.queue)), kind_of(instruction.queue));
  if (waits) return;
  // Without the event the host keeps the order: it goes on when all that could be meant has run.
  if (Status status = queue(recorded_on).synchronize(); !status.ok()) lose(std::move(status));
}

void QueueRun::lose(Status status) {
  if (lost_.ok()) lost_ = std::move(status);
}

void QueueRun::synchronize() {
  const QueueId queues = queue_count(state_->plan().device_count);
  for (QueueId id = 0; id < queues; ++id) {
    if (!used_queues_[id]) continue;
    const bool shared = id == upload_queue_ && own_copies_ != nullptr;
    Status status = shared ? own_copies_->synchronize() : queue(id).synchronize();
    if (!status.ok()) lose(std::move(status));
  }
  if (used_queues_[kWorkerQueue]) worker_clock_.host_waits(worker_clock_.seconds());
}

// Behind the program's own copies. What cannot be had is left out. REQUIRES: there are some, since
// only then has the run the device that they go to.
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
    if (uploads_.empty() && used_queues_[upload_queue_]) {
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

// Where their copies take longer than the program, whoever waits for its results waits for them as
// well, and the next program does not.
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

void QueueRun::settle(RunCounts& counts) {
  const Graph& graph = state_->graph();
  const Plan& plan = state_->plan();
  for (size_t n = 0; n < outcomes_.size(); ++n) {
    counts.skipped += outcomes_[n] == Outcome::kSkipped;
    counts.kernels[plan.placements[n].device] += outcomes_[n] == Outcome::kRan || outcomes_[n] == Outcome::kFailed;
  }
  for (const GroupTask& task : group_tasks_) count_group(task, counts);
  for (const Instruction& instruction : plan.program) {
    if (instruction.queue != kWorkerQueue || instruction.is_event()) continue;
    counts.host_tasks += outcomes_[instruction.index] == Outcome::kRan;
  }
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
