#include "graph/run/bound_program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cpu/fused/follower.h"
#include "graph/fusion/unfused.h"
#include "graph/ir/follower.h"
#include "graph/ir/kernel_error.h"
#include "graph/run/bound_slot.h"
#include "graph/run/submit.h"

namespace hetero::graph {

using backend::DeviceIndex;
using backend::kCpu;

thread_local Status* BoundProgram::recorded_failure_ = nullptr;

namespace {

// A launch whose addresses change a second time moves. What cannot be recorded stays alone.
constexpr SegmentRecorder::Policy kSegmentPolicy{.most_changes = 2, .divides = false};

// What a member of a group that could not run as one has met.
struct MemberError {
  Status status;
};

// The operator of the first node that it computes.
std::string name_of(const Graph& graph, const Plan& plan, const Instruction& instruction) {
  const std::string* name = nullptr;
  for_each_node(plan, instruction, [&](uint32_t n) {
    if (name == nullptr) name = &op_table()[graph.nodes[n].op].name;
  });
  return name == nullptr ? "a copy" : *name;
}

}  // namespace

BoundProgram::BoundProgram(const Graph& graph, const Plan& plan, const Devices& devices,
                           std::span<const std::vector<Place>> places, const Arenas& arenas,
                           std::span<Binding* const> bindings, const BoundOptions& options)
    : graph_(graph),
      plan_(plan),
      devices_(devices),
      arenas_(arenas),
      bindings_(bindings.begin(), bindings.end()),
      host_only_(uses_host_only(plan)),
      stay_(plan.residences.size(), 0),
      gates_(places.size()) {
  choose_queues(options.compute_queues);
  events_.resize(plan.event_count);
  for (const Instruction& instruction : plan.program) bind(instruction);
  bind_transfers();
  if (host_only_) bind_followers();
  host_shares_ = !host_only_ && shares_with_host();
  if (options.segments && !host_only_) runs_ = find_launch_runs(graph, plan, options.draws);
  for (size_t s = 0; s < places.size(); ++s) {
    Slot& slot = *slots_.emplace_back(std::make_unique<Slot>(*this));
    slot.table.resize(entries_.size());
    fill(s, places[s]);
    if (s == 0) prepare(slot);
    if (host_only_) continue;
    slot.on_device.resize(entries_.size());
    for (const Step& step : steps_) slot.launches.push_back({&slot, step.position, slot.table.data() + step.entry});
    for (Launch& launch : slot.launches) slot.tasks.push_back(task_of(graph, plan, launch));
    if (!runs_.empty()) slot.segments.emplace(steps_.size(), runs_, slot, kSegmentPolicy);
    make_schedule(slot);
    for (QueueId q = kHostQueue + 1; q < queue_count(plan_.device_count); ++q) {
      if (used_queues_[q]) slot.ended[q] = devices_[device_of(q)]->create_event();
    }
  }
}

BoundProgram::~BoundProgram() = default;

// ---- binding ------------------------------------------------------------------------------------

void BoundProgram::choose_queues(std::span<const backend::QueueKind> compute_queues) {
  for (QueueId id = 0; id < queue_count(plan_.device_count); ++id) {
    backend::Device* const device = devices_[device_of(id)];
    if (device == nullptr) continue;
    backend::QueueKind kind = kind_of(id);
    if (runs_kernels(id) && !compute_queues.empty()) {
      kind = compute_queues[static_cast<size_t>(backend::compute_queue_number(kind)) % compute_queues.size()];
    }
    queues_[id] = &device->queue(kind);
    kinds_[id] = kind;
  }
}

void BoundProgram::add_entry(const TouchedBytes& touch) {
  const size_t place = plan_.place_of(touch.buffer, touch.device);
  const uint32_t stay = stay_[place];
  const Residence& residence = stay == 0 ? plan_.residences[place] : plan_.returns[stay - 1].residence;
  entries_.push_back({touch.buffer, touch.device, static_cast<uint32_t>(steps_.size()), &residence});
}

void BoundProgram::bind_call(const Instruction& call, DeviceIndex device) {
  Invocation& bound = calls_.emplace_back(call_of(graph_, graph_.nodes[call.index], call.part()));
  // What is kept with a binding belongs to the thread that runs the slot.
  bound.bindings = call.queue == kHostQueue && !bindings_.empty() ? bindings_.data() : nullptr;
  bound.by_device = is_by_device(device, *devices_[device]);
}

void BoundProgram::bind(const Instruction& instruction) {
  const DeviceIndex device = device_of(instruction.queue);
  used_queues_.set(instruction.queue);
  Step step{.instruction = instruction,
            .position = static_cast<uint32_t>(steps_.size()),
            .call = static_cast<uint32_t>(calls_.size()),
            .count = 0,
            .entry = static_cast<uint32_t>(entries_.size()),
            .entries = 0,
            .seconds = modelled_seconds(graph_, plan_, instruction)};
  for_each_call(plan_, instruction, [&](const Instruction& call) { bind_call(call, device); });
  step.count = static_cast<uint32_t>(calls_.size()) - step.call;
  if (instruction.stay != 0) stay_[plan_.place_of(instruction.index, instruction.to)] = instruction.stay;
  for_each_touch(graph_, plan_, instruction, [this](const TouchedBytes& touch) { add_entry(touch); });
  step.entries = static_cast<uint32_t>(entries_.size()) - step.entry;
  steps_.push_back(step);
  // An event belongs to the device that records it.
  if (instruction.is_record()) events_[instruction.index] = devices_[device]->create_event();
}

// Whether the host touches bytes that change and that queues copy to or from an accelerator outside
// of the program: inputs that are uploaded, results that are brought back.
bool BoundProgram::shares_with_host() const {
  std::vector<bool> changes(graph_.buffers.size(), false);
  for (const Node& node : graph_.nodes) {
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      if (operands[i].writes()) changes[operands[i].buffer] = true;
    }
  }
  const auto is_bound = [&](BufferId buffer, DeviceIndex device) {
    const Home home = plan_.residence(buffer, device).home;
    return home == Home::kBound || home == Home::kBrought || backend::contains(graph_.buffers[buffer].valid_on, device);
  };
  const auto is_bound_elsewhere = [&](BufferId buffer) {
    for (DeviceIndex d = 1; d < plan_.device_count; ++d) {
      if (is_bound(buffer, d)) return true;
    }
    return false;
  };
  return std::ranges::any_of(entries_, [&](const Entry& entry) {
    return steps_[entry.step].instruction.queue == kHostQueue && changes[entry.buffer] &&
           is_bound(entry.buffer, kCpu) && is_bound_elsewhere(entry.buffer);
  });
}

void BoundProgram::bind_transfers() {
  size_t most = 0;
  for (uint32_t position = 0; position < steps_.size();) {
    if (!steps_[position].instruction.is_copy()) {
      ++position;
      continue;
    }
    const uint32_t end = end_of_transfer(graph_, plan_, position);
    steps_[position].count = end - position;
    most = std::max<size_t>(most, end - position);
    position = end;
  }
  ranges_.reserve(most);
}

void BoundProgram::bind_followers() {
  for (Step& step : steps_) {
    if (!has_follower(graph_, plan_, step.position)) continue;
    const Node& node = graph_.nodes[step.instruction.index];
    const Operand& result = graph_.operands_of(node)[node.operand_count - 1];
    const FusedGroup& group = plan_.groups[plan_.program[step.position + 1].index];
    step.result = followed_operand(graph_, plan_, step.position);
    step.leads = group.prepared &&
                 backend::Follower::can_follow(group.launch, step.result, (*graph_.windows)[result.window].numel);
    calls_[step.call].leads = step.leads;
    const Residence& residence = plan_.residence(result.buffer, kCpu);
    step.result_wanted =
        residence.home != Home::kArena || residence.last > step.position + 1 || group.operands[step.result].stores;
  }
}

void BoundProgram::fill(size_t index, std::span<const Place> places) {
  Slot& slot = *slots_[index];
  for (size_t e = 0; e < entries_.size(); ++e) {
    const Entry& entry = entries_[e];
    if (entry.residence->home == Home::kArena) {
      slot.table[e] = arenas_[entry.device] + entry.residence->offset;
    } else {
      slot.table[e] = places[entry.buffer][entry.device];
    }
  }
}

// With the first slot's addresses: no choice is about those of values that change.
void BoundProgram::prepare(const Slot& slot) {
  for (const Step& step : steps_) {
    if (step.instruction.is_copy()) continue;
    void* const* data = slot.table.data() + step.entry;
    for (const Invocation& call : std::span(calls_).subspan(step.call, step.count)) {
      counts_.prepared += prepare_call(call, device_of(step.instruction.queue), data) ? 1 : 0;
      data += call.node->operand_count;
    }
  }
}

bool BoundProgram::prepare_call(const Invocation& call, DeviceIndex device, void* const* data) {
  const KernelFunction prepare = call.by_device ? nullptr : call.traits->prepare;
  if (prepare == nullptr) return false;
  std::vector<void*> addresses(data, data + call.node->operand_count);
  if (device != kCpu) translate(*devices_[device], addresses, addresses.data());
  Invocation invocation = call;
  invocation.data = addresses.data();
  try {
    prepare(invocation);
  } catch (...) {
    return false;
  }
  return true;
}

BoundCounts BoundProgram::counts() const {
  BoundCounts counts = counts_;
  counts.allocations = allocations_.load(std::memory_order_relaxed);
  for (const auto& slot : slots_) counts.recordings += slot->segments ? slot->segments->recordings() : 0;
  return counts;
}

void BoundProgram::rebind(size_t index, BufferId buffer, DeviceIndex device, void* data) {
  Slot& slot = *slots_[index];
  for (size_t e = 0; e < entries_.size(); ++e) {
    const Entry& entry = entries_[e];
    if (entry.buffer != buffer || entry.device != device || entry.residence->home == Home::kArena) continue;
    if (slot.table[e] == data) continue;
    slot.table[e] = data;
    if (slot.segments && slot.segments->run_of(entry.step) != nullptr) slot.segments->note_change(entry.step);
  }
}

// ---- running ------------------------------------------------------------------------------------

Status BoundProgram::run(size_t index, const std::atomic<int32_t>* stop) {
  Slot& slot = *slots_[index];
  ++counts_.runs;
  if (host_only_) return run_on_host(slot, stop);
  if (slot.segments) keep_segments(slot);
  if (Status status = begin_queues(slot, index); !status.ok()) return status;
  Status status = run_with_queues(slot, stop);
  if (!status.ok()) fail(slot, status);
  Status ended = end_queues(slot);
  return status.ok() ? ended : status;
}

Status BoundProgram::run_on_host(Slot& slot, const std::atomic<int32_t>* stop) {
  const Step* step = steps_.data();
  const Step* const end = step + steps_.size();
  try {
    for (; step != end; ++step) {
      if (stop != nullptr && stop->load(std::memory_order_relaxed) != 0) {
        return Status(ErrorClass::kCancelled, "the request was cancelled while it ran");
      }
      if (step->leads && lead(*step, slot)) {
        ++step;
      } else if (!step->leads) {
        call(*step, slot);
      }
    }
    // A virtual clock does not see what the host does; it is told.
    if (backend::Device* const clock = virtual_clock(); clock != nullptr) {
      for (const Step& done : steps_) clock->advance_host(done.seconds);
    }
  } catch (const MemberError& error) {
    return error.status;
  } catch (...) {
    return kernel_error(name_of(graph_, plan_, step->instruction));
  }
  return Status();
}

// Devices of one simulated machine have one host's clock.
backend::Device* BoundProgram::virtual_clock() const {
  for (DeviceIndex d = 1; d < backend::kMostDevices && devices_[d] != nullptr; ++d) {
    if (devices_[d]->has_virtual_clock()) return devices_[d];
  }
  return nullptr;
}

// A step of the CPU, here and now.
void BoundProgram::call(const Step& step, Slot& slot) {
  ++counts_.kernels;
  void* const* const data = slot.table.data() + step.entry;
  if (step.instruction.is_group()) return call_group(step, slot);
  if (step.instruction.is_batch()) return call_batch(step, data);
  call_node(step.call, data);
}

// Calls the node, and tells whether the next step has run with it.
bool BoundProgram::lead(const Step& step, Slot& slot) {
  const Step& next = steps_[step.position + 1];
  const FusedGroup& group = plan_.groups[next.instruction.index];
  backend::Follower follower(group.launch, slot.table.data() + next.entry, group.numbers.data(), step.result,
                             step.result_wanted);
  Invocation invocation = calls_[step.call];
  invocation.data = slot.table.data() + step.entry;
  if (may_follow(step, slot)) invocation.follower = &follower;
  ++counts_.kernels;
  call_kernel(invocation);
  if (!follower.finished()) return false;
  ++counts_.kernels;
  ++(follower.limited() ? counts_.limited : counts_.followed);
  return true;
}

// Whether the next step writes nothing that the call still reads, or that it reads itself and would
// read again: both may use one memory, one after the other, and callers may lend one for several.
bool BoundProgram::may_follow(const Step& step, const Slot& slot) const {
  const auto range = [&](BufferId buffer, uint32_t entry) {
    const auto* const begin = static_cast<const std::byte*>(slot.table[entry]);
    return std::pair(begin, begin + graph_.buffers[buffer].bytes);
  };
  const Step& next = steps_[step.position + 1];
  const Node& node = graph_.nodes[step.instruction.index];
  const std::vector<GroupOperand>& written = plan_.groups[next.instruction.index].operands;
  for (uint32_t w = 0; w < written.size(); ++w) {
    if (!written[w].stores || w == step.result) continue;
    const auto [begin, end] = range(written[w].buffer, next.entry + w);
    for (uint32_t r = 0; r < node.operand_count; ++r) {
      const auto [other_begin, other_end] = range(graph_.operands_of(node)[r].buffer, step.entry + r);
      if (begin < other_end && other_begin < end) return false;
    }
    for (uint32_t r = 0; r < written.size(); ++r) {
      if (!written[r].loads || r == step.result) continue;
      const auto [other_begin, other_end] = range(written[r].buffer, next.entry + r);
      if (begin < other_end && other_begin < end) return false;
    }
  }
  return true;
}

void BoundProgram::call_node(uint32_t index, void* const* data) {
  Invocation invocation = calls_[index];
  invocation.data = data;
  call_kernel(invocation);
}

void BoundProgram::call_batch(const Step& step, void* const* data) {
  Invocation together[kMaxBatch];
  for (uint32_t c = 0; c < step.count; ++c) {
    together[c] = calls_[step.call + c];
    together[c].data = data;
    data += together[c].node->operand_count;
  }
  try {
    together[0].traits->run_together(together, step.count);
    return;
  } catch (...) {
    // One by one, the call that fails says so.
  }
  for (uint32_t c = 0; c < step.count; ++c) together[c].traits->kernel(together[c]);
}

void BoundProgram::call_group(const Step& step, Slot& slot) {
  const FusedGroup& group = plan_.groups[step.instruction.index];
  void* const* const data = slot.table.data() + step.entry;
  if (group.prepared && backend::run_fused(group.launch, data, group.numbers.data())) [[likely]]
    return;
  call_members(group, data);
}

// As if they had never been fused, with the CPU's kernels. `operands`: of the group.
void BoundProgram::call_members(const FusedGroup& group, void* const* operands) {
  UnfusedMemory memory;
  std::vector<void*> data;
  for (const uint32_t n : group.members) {
    const Node& node = graph_.nodes[n];
    const size_t taken = memory.size();
    data.resize(node.operand_count);
    Status status = memory.resolve(graph_, group, operands, node, *devices_[kCpu], data.data());
    allocations_.fetch_add(static_cast<int64_t>(memory.size() - taken), std::memory_order_relaxed);
    if (!status.ok()) throw MemberError{std::move(status)};
    const OpTraits& traits = op_table()[node.op];
    Invocation member = call_of(graph_, node, traits.has_tail ? Part::kTail : Part::kWhole);
    member.data = data.data();
    try {
      traits.kernel(member);
    } catch (...) {
      throw MemberError{kernel_error(traits.name)};
    }
  }
}

// ---- running on several queues ------------------------------------------------------------------

void BoundProgram::fail(Slot& slot, Status status) {
  const std::lock_guard lock(slot.mutex);
  if (slot.failure.ok()) slot.failure = std::move(status);
  slot.failed.store(true, std::memory_order_release);
}

Status BoundProgram::wait_here(backend::Event& event) {
  if (!event.query()) ++counts_.host_waits;
  return queue(kHostQueue).wait(event);
}

// What the last run of any slot still does comes first, since slots share the arenas.
Status BoundProgram::begin_queues(const Slot& slot, size_t index) {
  for (QueueId q = 0; q < queue_count(plan_.device_count); ++q) {
    if (!used_queues_[q]) continue;
    for (QueueId other = 1; last_ != nullptr && other < queue_count(plan_.device_count); ++other) {
      backend::Event* const ended = last_->ended[other].get();
      if (ended == nullptr || other == q) continue;
      if (Status status = q == kHostQueue ? wait_here(*ended) : queue(q).wait(*ended); !status.ok()) return status;
    }
    for (backend::Event* const event : gates_[index]) {
      if (event == nullptr || (q == kHostQueue && !host_shares_)) continue;
      if (Status status = q == kHostQueue ? wait_here(*event) : queue(q).wait(*event); !status.ok()) return status;
    }
  }
  if (used_queues_[kWorkerQueue]) begin_worker();
  last_ = &slot;
  return Status();
}

// In virtual time, what the last run still does comes first on all queues, too.
void BoundProgram::begin_worker() {
  backend::Device* const clock = virtual_clock();
  worker_clock_.begin(clock, plan_.event_count);
  if (clock == nullptr || last_ == nullptr) return;
  if (used_queues_[kHostQueue]) worker_clock_.host_waits(last_->worker_ended);
  for (QueueId q = kWorkerQueue + 1; q < queue_count(plan_.device_count); ++q) {
    if (!used_queues_[q]) continue;
    backend::Device& device = *devices_[device_of(q)];
    worker_clock_.worker_waits(device.queue_seconds(kinds_[q]));
    device.hold_queue(kinds_[q], last_->worker_ended);
  }
}

Status BoundProgram::end_queues(Slot& slot) {
  slot.ran = true;
  slot.worker_ended = worker_clock_.seconds();
  for (QueueId q = 1; q < queue_count(plan_.device_count); ++q) {
    if (slot.ended[q] == nullptr) continue;
    if (Status status = queue(q).record(*slot.ended[q]); !status.ok()) return status;
  }
  return Status();
}

Status BoundProgram::run_with_queues(Slot& slot, const std::atomic<int32_t>* stop) {
  backend::Device* const clock = virtual_clock();
  for (const Slot::Item& item : slot.schedule) {
    const Step& step = *item.step;
    const QueueId id = step.instruction.queue;
    if (stop != nullptr && stop->load(std::memory_order_relaxed) != 0) {
      return Status(ErrorClass::kCancelled, "the request was cancelled while it ran");
    }
    if (item.recording != nullptr) {
      if (Status status = submit_segment(*item.recording, slot); !status.ok()) return status;
    } else if (step.instruction.is_record()) {
      if (Status status = queue(id).record(*events_[step.instruction.index]); !status.ok()) return status;
      worker_clock_.record(step.instruction, *devices_[device_of(id)], kinds_[id]);
    } else if (step.instruction.is_wait()) {
      backend::Event& event = *events_[step.instruction.index];
      const Status status = id == kHostQueue ? wait_here(event) : queue(id).wait(event);
      if (!status.ok()) return status;
      worker_clock_.wait(step.instruction, *devices_[device_of(id)], kinds_[id]);
    } else if (id != kHostQueue) {
      if (Status status = submit(step, slot); !status.ok()) return status;
    } else {
      execute(slot, step.position, nullptr);
      if (clock != nullptr) clock->advance_host(step.seconds);
    }
  }
  return Status();
}

Status BoundProgram::submit(const Step& step, Slot& slot) {
  if (step.instruction.is_copy()) return submit_transfer(step, slot);
  ++counts_.kernels;
  Status status = queue(step.instruction.queue).launch(slot.tasks[step.position]);
  if (status.ok() && step.instruction.queue == kWorkerQueue) worker_clock_.run(step.seconds);
  return status;
}

Status BoundProgram::submit_transfer(const Step& first, const Slot& slot) {
  if (first.count == 0) return Status();  // submitted with an earlier one
  ++counts_.kernels;
  ranges_.clear();
  for (const Step& step : std::span(&first, first.count)) {
    ranges_.push_back(
        {slot.table[step.entry + 1], slot.table[step.entry], graph_.buffers[step.instruction.index].bytes});
  }
  return submit_copies(queue(first.instruction.queue), ranges_);
}

// On the thread of the step's queue, or where it is recorded.
void BoundProgram::execute(Slot& slot, uint32_t position, void* const* addresses) {
  const Step& step = steps_[position];
  const bool recorded = recorded_failure_ != nullptr;
  // A recording is of a run in which nothing fails.
  if (!recorded && slot.failed.load(std::memory_order_acquire)) return;
  Status status;
  try {
    status = execute_step(step, slot, addresses);
  } catch (const MemberError& error) {
    status = error.status;
  } catch (...) {
    status = kernel_error(name_of(graph_, plan_, step.instruction));
  }
  if (status.ok()) return;
  if (recorded) {
    *recorded_failure_ = std::move(status);
  } else {
    fail(slot, std::move(status));
  }
}

Status BoundProgram::execute_step(const Step& step, Slot& slot, void* const* addresses) {
  const DeviceIndex device = device_of(step.instruction.queue);
  if (step.instruction.queue == kHostQueue) {
    call(step, slot);
    return Status();
  }
  if (step.instruction.queue == kWorkerQueue) {
    call_node(step.call, addresses);
    return Status();
  }
  void** const data = slot.on_device.data() + step.entry;
  translate(*devices_[device], {addresses, step.entries}, data);
  if (!step.instruction.is_group()) {
    call_node(step.call, data);
    return Status();
  }
  const FusedGroup& group = plan_.groups[step.instruction.index];
  Result<bool> passed = run_as_one(group, *devices_[device], data);
  if (passed.ok() && !passed.value()) call_members(group, data);
  return passed.status();
}

// Blocks until the slot's last run is over on all devices.
Status BoundProgram::synchronize(const Slot& slot) const {
  Status status;
  for (QueueId q = 1; slot.ran && q < queue_count(plan_.device_count); ++q) {
    if (slot.ended[q] == nullptr) continue;
    if (Status ended = slot.ended[q]->synchronize(); !ended.ok() && status.ok()) status = std::move(ended);
  }
  backend::Device* const clock = used_queues_[kWorkerQueue] ? virtual_clock() : nullptr;
  if (clock != nullptr) clock->advance_host(std::max(0.0, slot.worker_ended - clock->host_seconds()));
  return status;
}

Status BoundProgram::wait(size_t index) {
  Slot& slot = *slots_[index];
  if (host_only_) return Status();
  const Status status = synchronize(slot);
  const std::lock_guard lock(slot.mutex);
  slot.failed.store(false, std::memory_order_relaxed);
  Status failure = std::exchange(slot.failure, Status());
  return failure.ok() ? status : failure;
}

bool BoundProgram::is_done(size_t index) const {
  const Slot& slot = *slots_[index];
  for (QueueId q = 1; slot.ran && q < queue_count(plan_.device_count); ++q) {
    if (slot.ended[q] != nullptr && !slot.ended[q]->query()) return false;
  }
  return true;
}

Status BoundProgram::wait_on(size_t index, backend::Queue& queue) {
  const Slot& slot = *slots_[index];
  for (QueueId q = 1; slot.ran && q < queue_count(plan_.device_count); ++q) {
    if (slot.ended[q] == nullptr) continue;
    if (Status status = queue.wait(*slot.ended[q]); !status.ok()) return status;
  }
  return Status();
}

}  // namespace hetero::graph
