// BoundProgram: a plan whose every instruction knows its addresses, so that a run calls kernels one
// after the other.
//
// Executor (executor.h) finds memory as it goes, because a lazy program meets other storages each
// time. A bound program gets its memory in advance. A Place says where each buffer's bytes are on
// each device, for each of a few *slots*. A slot is a set of inputs and outputs. Slots share
// everything else, so only one of them runs at a time. Kernels that choose an implementation, or
// keep a weight in another layout, do so when they are bound (OpTraits::prepare). A run takes no
// memory and no lock. It waits for a device only if a CPU kernel needs that device's result.
//
// A plan's compute queues are those of an unshared accelerator. On a shared one,
// BoundOptions::compute_queues says which of its queues stand for them.
//
// Adjacent launches of an accelerator become *segments* (bound_segments.cpp, segment_recorder.h).
// They are recorded once the slot's addresses have settled, launched as one from then on, and
// discarded when one of their addresses changes.
//
// The first failure ends a run: later instructions are skipped. Work that is already on a device's
// queue does no harm.
//
// Thread safety: one thread at a time, any thread. wait() and rebind() of an idle slot may run
// during the run of another.
// Ownership: the graph, the plan, the places' memory and the devices outlive it. REQUIRES of the
// destructor: nothing runs.

#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/device/device.h"
#include "graph/ir/binding.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/run/segment_recorder.h"
#include "graph/run/worker_clock.h"

namespace hetero::graph {

// Where the bytes of a buffer are, per device; null where they never are.
using Place = std::array<void*, backend::kMostDevices>;

#define HETERO_BOUND_COUNTS(X)                                                                      \
  X(runs, "runs")                                                                                   \
  X(kernels, "kernels called or launched; a group, a batch or a transfer is one")                   \
  X(host_waits, "times that a run waited for a device")                                             \
  X(allocations, "blocks that a run had to take, for members of a group that could not run as one") \
  X(segments, "segments launched; the kernels of each count as kernels too")                        \
  X(followed, "calls during which the fused kernel behind them ran, on parts of their results")     \
  X(limited, "calls that limited their results in place of the fused kernel behind them")           \
  X(recordings, "segments recorded")                                                                \
  X(prepared, "calls for which a kernel chose how to compute, before any run")

struct BoundCounts {
#define X(name, text) int64_t name = 0;
  HETERO_BOUND_COUNTS(X)
#undef X

  BoundCounts& operator+=(const BoundCounts& other) {
#define X(name, text) name += other.name;
    HETERO_BOUND_COUNTS(X)
#undef X
    return *this;
  }
};

struct BoundOptions {
  // Whether launches that follow each other become segments.
  bool segments = true;
  // Per node: whether its attributes may change between runs. Empty: none do.
  std::span<const uint8_t> draws = {};
  // The accelerator's queues that stand for the plan's compute queues, in turn; of fewer than the
  // plan uses, one stands for several. Empty: each for itself.
  std::span<const backend::QueueKind> compute_queues = {};
};

// bound_slot.h
struct BoundStep;
struct BoundSlot;

class BoundProgram {
 public:
  using Devices = backend::Devices;
  using Arenas = std::array<std::byte*, backend::kMostDevices>;

  // `places[slot][buffer]`, of buffers that are bound (Home::kBound, kBrought where they survive);
  // arenas per device. `bindings` as Invocation::bindings has it; may be empty.
  BoundProgram(const Graph& graph, const Plan& plan, const Devices& devices, std::span<const std::vector<Place>> places,
               const Arenas& arenas, std::span<Binding* const> bindings, const BoundOptions& options = {});
  ~BoundProgram();
  BoundProgram(const BoundProgram&) = delete;

  // From now on the buffer's bytes are there in this slot. REQUIRES: the slot does not run, and its
  // last run is over on all devices.
  void rebind(size_t slot, BufferId buffer, backend::DeviceIndex device, void* data);

  // Runs the slot: kernels of the CPU here, the rest is submitted. `stop`, where not null, is
  // looked at between kernels: where it is not 0, the run ends as cancelled. Errors: what the host
  // met; what devices meet, wait() tells.
  Status run(size_t slot, const std::atomic<int32_t>* stop = nullptr);
  // Blocks until the slot's last run is over on all devices. The first error of its runs since the
  // last call; until it is asked for, runs of the slot do nothing.
  Status wait(size_t slot);
  bool is_done(size_t slot) const;

  // Work of `queue` that is submitted from now on comes after the slot's last run.
  Status wait_on(size_t slot, backend::Queue& queue);
  // The next run of the slot comes after the last record of `event`, which outlives it; null: no
  // more.
  enum class Gate : uint8_t { kInputs, kOutputs };
  void gate(size_t slot, Gate which, backend::Event* event) { gates_[slot][static_cast<size_t>(which)] = event; }

  bool on_host_only() const { return host_only_; }
  BoundCounts counts() const;

 private:
  friend BoundSlot;
  using Step = BoundStep;
  using Slot = BoundSlot;

  void bind(const Instruction& instruction);
  void bind_transfers();
  void bind_followers();
  void add_entry(const TouchedBytes& touch);
  void bind_call(const Instruction& call, backend::DeviceIndex device);
  bool shares_with_host() const;
  void fill(size_t slot, std::span<const Place> places);
  void prepare(const Slot& slot);
  bool prepare_call(const Invocation& call, backend::DeviceIndex device, void* const* data);

  Status run_on_host(Slot& slot, const std::atomic<int32_t>* stop);
  Status run_with_queues(Slot& slot, const std::atomic<int32_t>* stop);
  void call(const Step& step, Slot& slot);
  bool lead(const Step& step, Slot& slot);
  bool may_follow(const Step& step, const Slot& slot) const;
  void call_node(uint32_t call, void* const* data);
  void call_batch(const Step& step, void* const* data);
  void call_group(const Step& step, Slot& slot);
  void call_members(const FusedGroup& group, void* const* operands);
  void execute(Slot& slot, uint32_t position, void* const* addresses);
  Status execute_step(const Step& step, Slot& slot, void* const* addresses);
  static void fail(Slot& slot, Status status);
  Status synchronize(const Slot& slot) const;
  Status begin_queues(const Slot& slot, size_t index);
  void begin_worker();
  Status end_queues(Slot& slot);
  Status submit(const Step& step, Slot& slot);
  Status submit_transfer(const Step& step, const Slot& slot);
  Status wait_here(backend::Event& event);

  // bound_segments.cpp
  void keep_segments(Slot& slot);
  void make_schedule(Slot& slot);
  Status submit_segment(const SegmentRecorder::Recording& recording, Slot& slot);
  backend::Device* virtual_clock() const;
  void choose_queues(std::span<const backend::QueueKind> compute_queues);
  backend::Queue& queue(QueueId id) const { return *queues_[id]; }

  const Graph& graph_;
  const Plan& plan_;
  const Devices devices_;
  std::array<backend::Queue*, kMaxQueues> queues_{};  // null where there is no such device
  std::array<backend::QueueKind, kMaxQueues> kinds_{};
  const Arenas arenas_;
  std::vector<Binding*> bindings_;
  bool host_only_ = false;
  bool host_shares_ = false;  // see shares_with_host()
  QueueSet used_queues_;
  WorkerClock worker_clock_;
  std::vector<Step> steps_;                 // by position
  std::vector<Invocation> calls_;           // of nodes; without data
  std::vector<backend::CopyRange> ranges_;  // of the transfer at hand
  // An address that some step uses: in each slot's table, the entry of that index.
  struct Entry {
    BufferId buffer;
    backend::DeviceIndex device;
    uint32_t step;
    const Residence* residence;
  };
  std::vector<Entry> entries_;
  std::vector<uint32_t> stay_;  // while binding: per residence, of which stay the bytes are
  LaunchRuns runs_;             // of which segments may be made
  // Where what is recorded on this thread tells its failure; null where nothing is.
  static thread_local Status* recorded_failure_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::array<backend::Event*, 2>> gates_;
  std::vector<std::unique_ptr<backend::Event>> events_;  // of the program
  const Slot* last_ = nullptr;                           // the slot that ran last
  BoundCounts counts_;                                   // save for recordings, and for
  std::atomic<int64_t> allocations_ = 0;                 // that queues' threads count too
};

}  // namespace hetero::graph
