// The executor has two loops over a program. `run_on_host` serves programs that use the CPU only:
// kernels are called in a row, and the loop does nothing else for a node than look up addresses.
// `QueueRun` serves the others; see queue_run.h.

#include "graph/run/executor.h"

#include <algorithm>
#include <chrono>

#include "backend/base/parallel.h"
#include "backend/registry/registry.h"
#include "graph/run/queue_run.h"
#include "graph/run/run_state.h"
#include "graph/run/submit.h"

namespace hetero::graph {
namespace {

using backend::kCpu;
using Outcome = RunState::Outcome;

// Poison where everything runs in program order: a flag per buffer, looked at only after something
// has failed.
class HostPoison {
 public:
  void begin(const RunState& state) {
    active_ = !state.poisoned_on_entry().empty();
    if (!active_) return;
    flags_.assign(state.graph().buffers.size(), kHealthy);
    for (const auto& [buffer, failure] : state.poisoned_on_entry()) flags_[buffer] = failure;
  }
  bool active() const { return active_; }

  FailureId of(BufferId buffer) const { return active_ ? flags_[buffer] : kHealthy; }

  FailureId of_inputs(RunState& state, const Node& node) const {
    const Operand* const operands = state.graph().operands_of(node);
    FailureId failure = kHealthy;
    for (int i = 0; i < node.operand_count; ++i) {
      if (operands[i].reads()) failure = state.earlier(failure, flags_[operands[i].buffer]);
    }
    return failure;
  }

  // Marks what the node wrote, or would have written. A success heals what it overwrote completely.
  void mark_outputs(const Graph& graph, const Node& node, FailureId failure) {
    if (!active_) flags_.assign(graph.buffers.size(), kHealthy);
    active_ = true;
    const Operand* const operands = graph.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      if (!operands[i].writes()) continue;
      const BufferId buffer = operands[i].buffer;
      if (failure != kHealthy || overwrites(*graph.windows, operands[i], graph.buffers[buffer])) {
        flags_[buffer] = failure;
      }
    }
  }

 private:
  bool active_ = false;
  std::vector<FailureId> flags_;
};

}  // namespace

// One of the host tasks that run at the same time.
struct HostTask {
  uint32_t node;
  size_t first;  // of its addresses in Impl::task_data
  FailureId failure;
  Span span;
};

// Memory of an operand of such a task.
struct TouchedRange {
  const std::byte* begin;
  const std::byte* end;
  bool written;

  bool allows(const TouchedRange& other) const {
    return (!written && !other.written) || end <= other.begin || other.end <= begin;
  }
};

struct Executor::Impl {
  bool from_registry = true;
  backend::Devices devices{};
  RunState state;
  HostPoison poison;
  QueueRun queue_run;
  std::vector<void*> data;  // of one node's operands
  std::vector<backend::Block> brought;
  std::vector<HostTask> tasks;   // that run at the same time
  std::vector<void*> task_data;  // of their operands
  std::vector<TouchedRange> touched;
  std::vector<Outcome> outcomes;            // per node
  std::vector<backend::DeviceSet> written;  // per buffer
  RunCounts* counts = nullptr;              // of this run
  RunTimes* times = nullptr;                // of this run, if wanted
  const Uploads* uploads = nullptr;
  std::unique_ptr<Segments>* segments = nullptr;
  std::chrono::steady_clock::time_point begun;
  bool host_only = false;  // its program uses the CPU only
  Status status;           // of a run with queues
  uint32_t position = 0;   // the next instruction of a run on the host

  bool run_on_host(const std::atomic<int32_t>* stop);
  bool is_host_task(const Instruction& instruction) const;
  bool run_host_tasks();
  void find_host_tasks();
  bool add_host_task(const Node& node);
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(); }
  void run_alone(uint32_t node, uint32_t position, Part part);
  void run_member(uint32_t node, uint32_t position);
  FailureId run_node(uint32_t node, uint32_t position, Part part, bool unfused);
  bool skip(uint32_t node);
  void settle_node(uint32_t node, FailureId failure);
  void run_group(const FusedGroup& group, uint32_t position);
  void run_batch(const std::vector<Instruction>& calls, uint32_t position);
  bool run_together(const std::vector<Instruction>& calls);
  Invocation invocation(uint32_t node, void* const* data, Part part);
  bool find_memory(const FusedGroup& group);
  bool find_memory(BufferId buffer, void*& address);
  void settle_host_run();
};

// False where it was stopped before the end.
bool Executor::Impl::run_on_host(const std::atomic<int32_t>* stop) {
  const Graph& graph = state.graph();
  const std::vector<Instruction>& program = state.plan().program;
  for (; position < program.size(); ++position) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed) != 0) return false;
    const Instruction& instruction = program[position];
    if (is_host_task(instruction) && run_host_tasks()) continue;
    if (times != nullptr) [[unlikely]]
      times->spans[position].begin = seconds();
    if (instruction.is_call()) {
      run_alone(instruction.index, position, instruction.part());
      state.release(graph.nodes[instruction.index], position);
    } else if (instruction.is_group()) {
      run_group(state.plan().groups[instruction.index], position);
    } else if (instruction.is_batch()) {
      run_batch(state.plan().batches[instruction.index], position);
    }
    if (times != nullptr) [[unlikely]]
      times->seconds = times->spans[position].end = seconds();
  }
  settle_host_run();
  return true;
}

bool Executor::Impl::is_host_task(const Instruction& instruction) const {
  return instruction.is_call() && !instruction.is_body() &&
         op_table()[state.graph().nodes[instruction.index].op].host_task;
}

// Host tasks in a row, which use one thread each, run on all threads. False, and nothing is done,
// where there is one only. `position` is then the last of them.
bool Executor::Impl::run_host_tasks() {
  if (poison.active() || backend::thread_count() == 1) return false;
  find_host_tasks();
  if (tasks.size() < 2) return false;
  backend::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (HostTask& task : std::span(tasks).subspan(begin, end - begin)) {
      Invocation call = call_of(state.graph(), state.graph().nodes[task.node], Part::kWhole);
      call.data = task_data.data() + task.first;
      if (times != nullptr) task.span.begin = seconds();
      task.failure = state.call_kernel(task.node, call);
      if (times != nullptr) task.span.end = seconds();
    }
  });
  for (const HostTask& task : tasks) {
    outcomes[task.node] = task.failure == kHealthy ? Outcome::kRan : Outcome::kFailed;
    settle_node(task.node, task.failure);
    if (times != nullptr) times->spans[position] = task.span;
    state.release(state.graph().nodes[task.node], position++);
  }
  --position;
  if (times != nullptr) times->seconds = seconds();
  counts->parallel_tasks += static_cast<int64_t>(tasks.size());
  return true;
}

// From `position` on: those that touch nothing that another writes, and get their memory.
void Executor::Impl::find_host_tasks() {
  constexpr size_t kMost = 64;
  const std::vector<Instruction>& program = state.plan().program;
  tasks.clear();
  touched.clear();
  task_data.clear();
  for (uint32_t p = position; p < program.size() && tasks.size() < kMost && is_host_task(program[p]); ++p) {
    const size_t first = task_data.size();
    if (!add_host_task(state.graph().nodes[program[p].index])) return;
    tasks.push_back({program[p].index, first, kHealthy, {}});
  }
}

bool Executor::Impl::add_host_task(const Node& node) {
  const size_t others = touched.size();
  for (int i = 0; i < node.operand_count; ++i) {
    const Operand& operand = state.graph().operands_of(node)[i];
    void* address = nullptr;
    if (!find_memory(operand.buffer, address)) return false;
    const auto* const begin = static_cast<const std::byte*>(address);
    const TouchedRange range{begin, begin + state.graph().buffers[operand.buffer].bytes, operand.writes()};
    const auto allows = [&](const TouchedRange& other) { return range.allows(other); };
    if (!std::ranges::all_of(std::span(touched).first(others), allows)) return false;
    touched.push_back(range);
    task_data.push_back(address);
  }
  return true;
}

void Executor::Impl::run_alone(uint32_t index, uint32_t place, Part part) {
  if (poison.active() && skip(index)) return;
  settle_node(index, run_node(index, place, part, false));
}

// As a member of a fused group that cannot run as one.
void Executor::Impl::run_member(uint32_t index, uint32_t place) {
  const bool tail = op_table()[state.graph().nodes[index].op].has_tail;
  // Where the body did not run, it has said so; where it did, what the tail reads is still there.
  if (tail ? outcomes[index] != Outcome::kRan : poison.active() && skip(index)) return;
  settle_node(index, run_node(index, place, tail ? Part::kTail : Part::kWhole, true));
}

// True where the node reads something poisoned.
bool Executor::Impl::skip(uint32_t index) {
  const Graph& graph = state.graph();
  const FailureId failure = poison.of_inputs(state, graph.nodes[index]);
  if (failure == kHealthy) return false;
  outcomes[index] = Outcome::kSkipped;
  ++counts->skipped;
  state.raise(failure);
  poison.mark_outputs(graph, graph.nodes[index], failure);
  return true;
}

void Executor::Impl::settle_node(uint32_t index, FailureId failure) {
  counts->kernels[kCpu] += outcomes[index] != Outcome::kNotRun;
  if (failure != kHealthy || poison.active()) {
    poison.mark_outputs(state.graph(), state.graph().nodes[index], failure);
  }
}

Invocation Executor::Impl::invocation(uint32_t index, void* const* addresses, Part part) {
  Invocation call = call_of(state.graph(), state.graph().nodes[index], part);
  call.data = addresses;
  call.brought = brought.data();
  call.bindings = state.unwritten_bindings();
  return call;
}

FailureId Executor::Impl::run_node(uint32_t index, uint32_t place, Part part, bool unfused) {
  const Graph& graph = state.graph();
  const Node& node = graph.nodes[index];
  if (node.operand_count > data.size()) {
    data.resize(node.operand_count);
    brought.resize(node.operand_count);
  }
  bool brings = false;
  FailureId failure =
      unfused ? state.resolve_unfused(index, place, data.data()) : state.resolve(index, kCpu, data.data(), brings);
  if (failure == kHealthy) {
    failure = state.call_kernel(index, invocation(index, data.data(), part));
    outcomes[index] = failure == kHealthy ? Outcome::kRan : Outcome::kFailed;
  }
  if (brings) {
    if (failure == kHealthy) failure = state.collect(index, data.data(), brought.data());
    for (int i = 0; i < node.operand_count; ++i) brought[i].reset();
  }
  return failure;
}

void Executor::Impl::run_group(const FusedGroup& group, uint32_t place) {
  if (group.prepared && !poison.active() && find_memory(group) &&
      backend::run_fused(group.launch, data.data(), group.numbers.data())) [[likely]] {
    for (const uint32_t n : group.members) outcomes[n] = Outcome::kRan;
    ++counts->kernels[kCpu];
    ++counts->fused_groups;
    counts->compiled_groups += group.launch.is_compiled();
    counts->fused_nodes += static_cast<int64_t>(group.members.size());
  } else {
    for (const uint32_t n : group.members) run_member(n, place);
    state.end_unfused();
  }
  for (const GroupOperand& operand : group.operands) state.release(operand.buffer, place);
}

void Executor::Impl::run_batch(const std::vector<Instruction>& calls, uint32_t place) {
  if (!poison.active() && run_together(calls)) [[likely]] {
    for (const Instruction& call : calls) outcomes[call.index] = Outcome::kRan;
    ++counts->kernels[kCpu];
    ++counts->batches;
    counts->batched_nodes += static_cast<int64_t>(calls.size());
  } else {
    for (const Instruction& call : calls) run_alone(call.index, place, call.part());
  }
  for (const Instruction& call : calls) state.release(state.graph().nodes[call.index], place);
}

// False, and no harm is done, where a call has to be made on its own.
bool Executor::Impl::run_together(const std::vector<Instruction>& calls) {
  const Graph& graph = state.graph();
  size_t operands = 0;
  for (const Instruction& call : calls) operands += graph.nodes[call.index].operand_count;
  if (operands > data.size()) {
    data.resize(operands);
    brought.resize(operands);
  }
  Invocation invocations[kMaxBatch];
  void** addresses = data.data();
  for (size_t i = 0; i < calls.size(); ++i) {
    const Node& node = graph.nodes[calls[i].index];
    for (int k = 0; k < node.operand_count; ++k) {
      if (!find_memory(graph.operands_of(node)[k].buffer, addresses[k])) return false;
    }
    invocations[i] = invocation(calls[i].index, addresses, calls[i].part());
    addresses += node.operand_count;
  }
  return state.call_together({invocations, calls.size()});
}

// Fills `data` with the addresses of the group's operands. False where one cannot get its memory.
bool Executor::Impl::find_memory(const FusedGroup& group) {
  if (group.operands.size() > data.size()) {
    data.resize(group.operands.size());
    brought.resize(group.operands.size());
  }
  for (size_t k = 0; k < group.operands.size(); ++k) {
    if (!find_memory(group.operands[k].buffer, data[k])) return false;
  }
  return true;
}

bool Executor::Impl::find_memory(BufferId buffer, void*& address) {
  address = state.address(buffer, kCpu);
  if (address != nullptr) [[likely]]
    return true;
  const bool found = state.try_provide(buffer, kCpu).ok();
  address = state.address(buffer, kCpu);
  return found;
}

void Executor::Impl::settle_host_run() {
  const Plan& plan = state.plan();
  if (poison.active()) state.find_written(outcomes, written);
  for (const BufferId b : state.placed()) {
    if (state.binding(b) == nullptr || plan.residence(b, kCpu).home == Home::kNone) continue;
    const bool changed = poison.active() && written[b] != 0;
    state.settle(b, poison.of(b), plan.valid_after[b], changed ? written[b] : state.binding(b)->valid_on);
  }
}

Executor::Executor() : impl_(std::make_unique<Impl>()) {}
Executor::Executor(const backend::Devices& devices) : Executor() {
  impl_->from_registry = false;
  impl_->devices = devices;
}
Executor::~Executor() = default;

void Executor::begin(const Graph& graph, const Plan& plan, std::span<Binding* const> bindings, RunCounts& counts,
                     RunTimes* times, const Uploads* uploads, std::unique_ptr<Segments>* segments) {
  Impl& impl = *impl_;
  impl.times = times;
  impl.uploads = uploads;
  impl.segments = segments;
  if (times != nullptr) {
    times->spans.assign(plan.program.size(), {});
    times->seconds = 0;
    impl.begun = std::chrono::steady_clock::now();
  }
  if (impl.from_registry) impl.devices = backend::all_devices();
  impl.state.begin(graph, plan, bindings, impl.devices);
  for (const uint64_t bytes : plan.arena_bytes) counts.arena_bytes += static_cast<int64_t>(bytes);
  impl.counts = &counts;
  impl.host_only = uses_host_only(plan);
  if (!impl.host_only) return;
  impl.poison.begin(impl.state);
  impl.outcomes.assign(graph.nodes.size(), Outcome::kNotRun);
  impl.position = 0;
}

bool Executor::go_on(const std::atomic<int32_t>* stop) {
  Impl& impl = *impl_;
  if (impl.host_only) return impl.run_on_host(stop);
  impl.status = impl.queue_run.run(impl.state, *impl.counts, impl.times, impl.uploads, impl.segments);
  return true;
}

Status Executor::end() {
  Impl& impl = *impl_;
  Status status = impl.host_only ? impl.state.first_failure() : std::exchange(impl.status, Status());
  impl.state.end();
  return status;
}

Status Executor::run(const Graph& graph, const Plan& plan, std::span<Binding* const> bindings, RunCounts& counts) {
  begin(graph, plan, bindings, counts);
  go_on(nullptr);
  return end();
}

}  // namespace hetero::graph
