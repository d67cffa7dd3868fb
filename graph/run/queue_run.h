// QueueRun: runs a program over several queues.
//
// The host walks the program once. It gives tasks and copies to the queues, records and waits for
// events, and calls the CPU's kernels itself. Tasks run later, on their queue's thread, and only
// then find out whether an operand is poisoned. That needs a flag for each *value*, not for each
// buffer: while a task reads an old value, the CPU may already write the next. So every write of
// the program makes a new slot. The one task that writes the slot sets it. Tasks that the program
// orders after it read it.
//
// If an operand of a fused group is poisoned, or a check of its kernel fails, its members run one
// by one, on the group's queue. A GPU has only the group's kernel. There it runs all the same,
// since arithmetic on garbage does no harm, and its members' outputs are poisoned one by one. But
// if it would overwrite existing bytes with garbage, none of its members runs. The body of a node
// with a tail and the group with the tail are two tasks. The first reports its outcome in
// `bodies_`, the second in the node's slots.
//
// Failures that the host itself finds, such as missing memory or a copy that it cannot submit,
// concern the bytes of one device and are known in program order. `broken_` keeps them per
// residence.
//
// Thread safety: one run at a time. Slots, data and outcomes are shared with the queues' threads,
// ordered by the program's events.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "graph/cost/device_timer.h"
#include "graph/run/run_data.h"
#include "graph/run/run_state.h"
#include "graph/run/segments.h"
#include "graph/run/worker_clock.h"

namespace hetero::graph {

class QueueRun final : public Segments::Owner {
 public:
  // Runs state.plan(), synchronizes every queue used and settles the bindings. Returns the first
  // failure.
  // `times`, `uploads` and `segments` may be null.
  Status run(RunState& state, RunCounts& counts, RunTimes* times, const Uploads* uploads,
             std::unique_ptr<Segments>* segments);

 private:
  struct NodeTask {
    uint32_t node;
    Part part;
    backend::DeviceIndex device;
    FailureId failure;  // known to the host
  };

  // A run of a group. Its addresses are in group_data_.
  struct GroupTask {
    const FusedGroup* group;
    uint32_t first_data;
    uint32_t first_broken;  // known to the host, as `failure`
    uint32_t broken_count;
    backend::DeviceIndex device;
    FailureId failure;     // there is no memory for some operand
    bool unfused = false;  // its members run one by one
  };
  struct Broken {
    BufferId buffer;
    FailureId failure;
  };

  // The time by the clock that the run goes by.
  double now() const;
  double begin_of(QueueId queue) const;
  double end_of(QueueId queue) const;
  void run_host_task(uint32_t position);

  void begin(RunState& state);
  void walk(RunCounts& counts, RunTimes* times);
  void submit_call(const Instruction& instruction, uint32_t position);
  void submit_group(const Instruction& instruction, uint32_t position);
  // Submits the task at `index` of the instruction's kind.
  void launch(uint32_t position, size_t index, std::span<void* const> addresses, std::span<const std::byte> numbers);
  void not_launched(uint32_t position, Status status);

  // Segments::Owner
  backend::Queue& queue_of(QueueId id) override { return queue(id); }
  void launch_alone(uint32_t position) override;
  void run_launch(uint32_t position, void* const* addresses) override;
  Result<std::unique_ptr<backend::Segment>> record(QueueId queue, std::span<Launch> launches) override;
  bool has_failed() const override { return state_->has_failures() || !lost_.ok(); }
  void note_launched_together(RunCounts& counts);

  // Copies that are one transfer.
  void submit_transfer(std::span<const Instruction> copies, RunCounts& counts);
  void prepare_copy(const Instruction& instruction);
  // From the pool; null where the device has none.
  backend::Event* next_event(backend::DeviceIndex device);
  void record(const Instruction& instruction, RunCounts& counts);
  void wait(const Instruction& instruction, RunCounts& counts);
  FailureId prepare(uint32_t node, backend::DeviceIndex device, bool& brings);
  void assign_slots(const Node& node);
  void run_node(const NodeTask& task, backend::Block* brought, bool brings);
  FailureId call(const NodeTask& task, void* const* data, backend::Block* brought);
  GroupTask prepare_group(const FusedGroup& group, backend::DeviceIndex device);
  void run_group(GroupTask& task);
  void run_members(const GroupTask& task);
  void run_member(const GroupTask& task, size_t member, UnfusedMemory& memory);
  size_t find_poison(const GroupTask& task);
  bool would_spoil(const GroupTask& task) const;
  void skip_group(const GroupTask& task);
  FailureId poison_of_member(const GroupTask& task, size_t member) const;
  void skip_member(uint32_t node, FailureId failure);
  FailureId broken_inputs(const GroupTask& task, size_t member) const;
  FailureId poison_of_inputs(const Node& node) const;
  FailureId poison_of_tail(const Node& node) const;
  void note_end(const NodeTask& task, FailureId failure);
  void mark_outputs(const Node& node, FailureId failure);
  bool has_timed_device() const;
  void find_clock();
  void lose(Status status);
  void synchronize();
  void submit_uploads(const Uploads& uploads);
  void finish_uploads(RunCounts& counts);
  void count_group(const GroupTask& task, RunCounts& counts) const;
  void settle(RunCounts& counts);
  backend::Queue& queue(QueueId id) const;

  RunState* state_ = nullptr;
  // The accelerator by whose clock, or events, a run is timed.
  static constexpr backend::DeviceIndex kTimed = backend::kCpu + 1;
  backend::Device* clock_ = nullptr;  // that one, where it has a virtual clock
  DeviceTimer timer_;                 // where it has none
  WorkerClock worker_clock_;          // where it has one
  RunTimes* times_ = nullptr;         // of this run; null where nobody asks
  double begun_ = 0;
  Status lost_;  // a device failed in a way that leaves no result certain
  QueueSet used_queues_;
  // This and the next: reserved for the whole run, since queues hold pointers.
  std::vector<NodeTask> tasks_;
  std::vector<GroupTask> group_tasks_;
  std::vector<uint32_t> task_of_;  // per instruction that was launched: its task of these
  std::vector<Launch> launches_;   // the same: what its queue was given
  Segments* segments_ = nullptr;   // where launches may be parts of some
  std::vector<void*> group_data_;  // per operand of the groups
  std::vector<Broken> group_broken_;
  std::vector<void*> data_;  // per operand of the graph
  // Per operand: the slot of what it reads, or writes a part of.
  std::vector<uint32_t> slot_before_;
  std::vector<uint32_t> slot_of_;  // per buffer: the slot of its last value
  // First one per buffer, for what is there on entry; then one per operand.
  std::vector<FailureId> slots_;
  // Per node: what became of its body, where that is a task of its own.
  std::vector<FailureId> bodies_;
  std::vector<FailureId> broken_;            // per residence
  std::vector<RunState::Outcome> outcomes_;  // per node
  std::vector<backend::DeviceSet> written_;
  std::vector<backend::CopyRange> ranges_;  // of a transfer
  std::vector<BufferId> moved_;             // their buffers
  std::vector<backend::Block> brought_;
  struct Upload {
    Binding* binding;
    backend::Block block;
    uint64_t bytes;
  };
  std::vector<Upload> uploads_;  // that were submitted
  backend::DeviceIndex uploads_to_ = 0;
  QueueId upload_queue_ = kHostQueue;
  // Recorded before them, where the program has copies of its own on their queue.
  backend::Event* own_copies_ = nullptr;
  struct RecordedEvent {
    backend::Event* event;  // null where recording failed
    QueueId queue;
  };
  std::vector<RecordedEvent> events_;
  std::vector<std::unique_ptr<backend::Event>> pool_[backend::kMostDevices];
  const void* pool_owner_[backend::kMostDevices] = {};
  size_t pool_used_[backend::kMostDevices] = {};
};

}  // namespace hetero::graph
