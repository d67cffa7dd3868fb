// RunState: what one run of a plan knows beside the plan: addresses, blocks, failures. Shared by
// the executor's two loops.
//
// Addresses are looked up once per run; bytes whose memory does not exist yet have a null address
// and get memory when an instruction first touches them (`provide`). Failures are numbered from 1,
// so that 0 can say "healthy" in a flag per value.
//
// Thread safety: add_failure, raise, earlier, has_failures and call_kernel may be used from
// kernels' threads. Everything else belongs to the thread that called Executor::run.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "backend/device/device.h"
#include "graph/fusion/unfused.h"
#include "graph/ir/binding.h"
#include "graph/ir/graph.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

using FailureId = uint32_t;
inline constexpr FailureId kHealthy = 0;

class RunState {
 public:
  // What became of a node.
  enum class Outcome : uint8_t { kNotRun, kRan, kFailed, kSkipped };

  // Takes the arenas and looks up every address. REQUIRES: the arguments outlive finish().
  void begin(const Graph& graph, const Plan& plan, std::span<Binding* const> bindings, const backend::Devices& devices);
  // Gives the arenas back. REQUIRES: all queues are synchronized.
  void end();

  const Graph& graph() const { return *graph_; }
  const Plan& plan() const { return *plan_; }
  backend::Device& device(backend::DeviceIndex index) const { return *devices_[index]; }
  Binding* binding(BufferId buffer) const { return bindings_[buffer]; }
  // The buffers that have a home on some device.
  const std::vector<BufferId>& placed() const { return notes_->placed; }

  void* address(BufferId buffer, backend::DeviceIndex device) const {
    return addresses_[plan_->place_of(buffer, device)];
  }

  // The CPU's worker queue touches the buffer's bytes: they stay until the run ends.
  void keep(BufferId buffer) {
    kept_.resize(graph_->buffers.size());
    kept_[buffer] = 1;
  }

  // The bytes come back to a device, in other memory.
  void come_back(const Return& entry);
  // Gives memory to bytes that have none yet, as their home says.
  FailureId provide(uint32_t node, BufferId buffer, backend::DeviceIndex device);
  Status try_provide(BufferId buffer, backend::DeviceIndex device);

  // Fills `data` with the addresses of the node's operands. Outputs whose memory the kernel is to
  // bring stay null; `brings` says whether there are any.
  FailureId resolve(uint32_t node, backend::DeviceIndex device, void** data, bool& brings);
  // Keeps the blocks that the kernel brought.
  FailureId collect(uint32_t node, void* const* data, backend::Block* brought);
  // Frees the blocks whose last touch is the node, or any of the buffer, at `position`.
  void release(const Node& node, uint32_t position);
  void release(BufferId buffer, uint32_t position);

  // For the members of a fused group at `position` that run one by one: what the group would not
  // have touched gets memory of its own, until end_unfused().
  FailureId resolve_unfused(uint32_t node, uint32_t position, void** data);
  void end_unfused() { unfused_.clear(); }

  // What Invocation::bindings of kernels on the CPU is.
  Binding* const* unwritten_bindings() const { return unwritten_.data(); }

  // Whether calls that run together did; where one threw, none counts.
  bool call_together(std::span<const Invocation> calls);
  // Calls the kernel; what it throws becomes a failure.
  FailureId call_kernel(uint32_t node, const Invocation& invocation);

  FailureId add_failure(uint32_t node, Status status);
  // In between, what fails is no failure of the run: the first is the result. REQUIRES: nothing
  // runs but what this thread calls.
  void begin_rehearsal();
  Status end_rehearsal();
  // Bound buffers whose bytes were lost before this run.
  const std::vector<std::pair<BufferId, FailureId>>& poisoned_on_entry() const { return on_entry_; }
  // Says that a failure has kept a node from running. What was lost on entry is an error of this
  // run only then.
  void raise(FailureId failure);
  bool has_failures() const { return failure_count_.load(std::memory_order_relaxed) != 0; }
  // The failure of two that came first in the program; kHealthy comes last.
  FailureId earlier(FailureId a, FailureId b);
  // REQUIRES: no kernel is running.
  const Status& status_of(FailureId failure) const { return failures_[failure - 1].status; }
  Status first_failure() const;

  // Which buffers were written by nodes that ran or failed halfway: the device of the last of them,
  // as a bit, which has the bytes. 0 for the others.
  void find_written(const std::vector<Outcome>& outcomes, std::vector<backend::DeviceSet>& written) const;
  // Tells a binding how the run ended for its buffer. `kept`: with a failure, where the bytes are
  // that were there before, as far as nodes have come.
  void settle(BufferId buffer, FailureId failure, backend::DeviceSet valid_on, backend::DeviceSet kept);

 private:
  void take_block(BufferId buffer);
  bool dies_on_host(BufferId buffer) const;

  struct Failure {
    uint32_t node;
    Status status;
    bool raised;
  };

  const Graph* graph_ = nullptr;
  const Plan* plan_ = nullptr;
  std::span<Binding* const> bindings_;
  backend::Devices devices_{};
  backend::Block arenas_[backend::kMostDevices];
  std::byte* arena_bases_[backend::kMostDevices] = {};
  Status arena_status_[backend::kMostDevices];
  const BufferNotes* notes_ = nullptr;  // the plan's, or
  BufferNotes own_notes_;
  std::vector<void*> addresses_;  // per residence
  // Per buffer: its binding, if bound valid and no node writes it.
  std::vector<Binding*> unwritten_;
  std::vector<backend::Block> held_;  // per buffer: what is kBrought or kOwned and does not escape
  std::vector<uint8_t> kept_;         // per buffer: keep(); empty where none is
  UnfusedMemory unfused_;
  std::mutex mutex_;  // guards failures_ while kernels run
  std::vector<Failure> failures_;
  std::vector<std::pair<BufferId, FailureId>> on_entry_;
  std::atomic<uint32_t> failure_count_{0};
  bool rehearsing_ = false;
  Status rehearsed_;
};

}  // namespace hetero::graph
