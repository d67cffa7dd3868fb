// SimDevice: an accelerator that needs no hardware, so that every multi-device test is a real test.
//
// It keeps the promises of a GPU and none of the host's comforts:
// - The host cannot touch its memory. One memfd is mapped twice: Block::data() is in an
//   inaccessible mapping, and only kernel_address() leads to the private mapping where tasks and
//   copies work.
// - Its queues (see QueueKind) are threads. Different queues really run at the same time, ordered
//   by Events alone. A missing Event is a data race that TSan and wrong results show.
// - Memory starts and ends poisoned (0xCD). Guard bands around every Block are checked when it is
//   released.
// Results are real: tasks are ordinary functions that run on the queue's thread.
//
// Times are virtual. VirtualClock computes when each command begins and ends, from Task::seconds
// and utilization, the link's figures and the order of submission, whatever the threads do. A task
// that submits or waits counts as the host. `pace` makes the threads follow these times. A segment
// takes one launch latency instead of one per task: those of the others are subtracted from their
// times.
//
// Event semantics are CUDA's. record captures the work submitted so far. wait captures the event's
// last record at the time of the call. Recording again does not affect earlier waits.
//
// Main invariant: a queue's worker runs its commands one by one in the order of submission.
// Thread safety: any thread. A forked child has no workers: every submission and allocation is
// refused with kDevice, and releasing a Block leaves the memory, which the parent shares, alone.
// Ownership: workers start with a queue's first command. Destroying a SimDevice drains and joins
// them. The registry's is leaked, and sleeping workers do not keep a process from exiting.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/device/atomic_counters.h"
#include "backend/device/device.h"
#include "backend/sim/sim_memory.h"
#include "backend/sim/virtual_clock.h"

namespace hetero::backend {

// One way between two simulated accelerators of a machine, which are numbered from 0.
struct SimLink {
  size_t from = 0;
  size_t to = 0;
  PeerLink link;

  bool operator==(const SimLink&) const = default;
};

struct SimOptions {
  // What allocate can hand out; taken from the system only when touched.
  size_t capacity_bytes = size_t{4} << 30;
  // What capabilities() reports, for planners. Tasks do not take their time from it but from
  // Task::seconds.
  double flops = 10e12;
  double flops_half = 0;  // 0: as flops
  double memory_bandwidth = 1e12;
  double launch_latency = 5e-6;
  double parallelism = 0;  // elements at the same time; 0: not known
  // The link: a copy takes copy_latency + bytes / bandwidth of virtual time. A copy within the
  // device reads and writes at memory_bandwidth, one within the host goes at h2d_bandwidth. A
  // bandwidth of 0 stands for no limit.
  double h2d_bandwidth = 25e9;  // capabilities().copy_bandwidth
  double d2h_bandwidth = 25e9;
  double copy_latency = 0;
  // Between accelerators of one machine, each way by itself: copies that take a link's latency +
  // bytes / bandwidth of virtual time. Without any, neighbours have links of kNeighbourBandwidth
  // both ways. Devices without a link copy by way of the host.
  static constexpr double kNeighbourBandwidth = 50e9;
  std::vector<SimLink> links = {};
  // The host that the simulated machine has, for planners; 0 for what this one is thought to have.
  double cpu_flops = 0;
  double cpu_flops_half = 0;
  double cpu_memory_bandwidth = 0;
  // Every duration takes so many times as long as it is expected to: a machine that is not what its
  // figures say.
  double slowdown = 1;
  // Virtual seconds until it becomes one.
  double slowdown_after = 0;
  // False: it runs no kernels of the CPU's. As on a GPU, operators need kernels of their own for it
  // (graph/ir/op.h); what these touch is within the host's reach all the same. For tests of how
  // operators come to a GPU.
  bool host_kernels = true;
  // Not 0: each worker pauses for a pseudo-random moment before each command, to shake out missing
  // events.
  uint64_t schedule_seed = 0;
  // 0 to 0.9: every virtual duration is multiplied by a pseudo-random factor in [1 - spread, 1 +
  // spread), which schedule_seed gives.
  double duration_spread = 0;
  // Not 0: a worker sleeps so that a command takes at least its virtual duration times this in real
  // time.
  double pace = 0;

  bool operator==(const SimOptions&) const = default;
};

// The options of the SimDevices that choose_accelerator("sim") makes from now on.
void set_sim_options(const SimOptions& options);
SimOptions sim_options();

class SimDevice final : public Device {
 public:
  // Errors: kDevice where the system grants no memory to map; kUsage for options out of range.
  static Result<std::unique_ptr<SimDevice>> create(const SimOptions& options = {});
  // Several accelerators of one machine, each as `options` say: they share the host, the virtual
  // clock and the links. Events of one are events of all. Errors: as above. REQUIRES: count >= 1;
  // they are destroyed together, when nothing runs on any of them.
  static Result<std::vector<std::unique_ptr<SimDevice>>> create_machine(const SimOptions& options, size_t count);
  ~SimDevice() override;

  const std::string& name() const override { return name_; }
  const Capabilities& capabilities() const override { return capabilities_; }
  const SimOptions& options() const { return options_; }
  // Not in a child that was forked since the device was made.
  bool is_usable() const;

  // REQUIRES, as for a GPU without a stream-ordered allocator: a Block is released only when no
  // submitted work uses it.
  Result<Block> allocate(size_t bytes) override;
  // An address outside this device's memory comes back unchanged.
  void* kernel_address(void* data) override { return memory_->kernel_address(data); }
  bool runs_host_kernels() const override { return options_.host_kernels; }
  bool can_fuse(const FusedKernel& kernel) const override;
  Result<bool> run_fused(const FusedCall& call) override;

  std::optional<PeerLink> link_from(const Device& other) const override;
  Queue& queue(QueueKind kind) override;
  std::unique_ptr<Event> create_event() override;
  Status synchronize() override;

  // Gives the pages of free memory back to the system.
  void empty_cache() override { memory_->empty_cache(); }
  // The smaller of this and the capacity holds.
  void set_memory_limit(size_t bytes) override { memory_->set_limit(bytes); }
  MemoryStats memory_stats() const override { return memory_->stats(); }
  void reset_peak() override { memory_->reset_peak(); }
  // Counted when submitted. Copies within the device are not counted.
  DeviceCounters counters() const override { return counters_.read(); }

  // The virtual clock, in seconds since the device was made or the clock reset. What is submitted
  // counts at once. Synchronizing with a queue, an event or the device raises the host's clock to
  // the time waited for; Event::query() moves no clock.
  bool has_virtual_clock() const override { return true; }
  void advance_host(double seconds) override;
  double host_seconds() const override;
  // When the queue is done with what was submitted to it.
  double queue_seconds(QueueKind kind) const override;
  void hold_queue(QueueKind kind, double until) override;
  // All clocks at 0, no spans, and the factors of duration_spread from the first again. Events
  // recorded before count as recorded at 0.
  void reset_clock();
  // From the first event's last record to the second's. Errors: kUsage unless this device recorded
  // both since the last reset_clock.
  Result<double> seconds_between(const Event& first, const Event& second) const override;
  // Whether the commands submitted from now on that have a duration leave a span. Spans stay until
  // reset_clock; the oldest are dropped beyond VirtualClock::kMostSpans.
  void record_spans(bool on);
  // Of this device, in the order of submission.
  std::vector<SimSpan> spans() const;

  // How many Blocks were released with damaged guard bands.
  int64_t guard_violations() const { return memory_->guard_violations(); }

 private:
  class SimQueue;
  class SimEvent;
  class SimRecord;
  class SimSegment;
  struct Signal;
  // The lock, the conditions and the clock that all queues and events of a machine share.
  struct Shared;

  // From another device of the machine.
  std::optional<PeerLink> peer_link(size_t from) const;

  SimDevice(const SimOptions& options, std::string name, size_t number, std::shared_ptr<Shared> shared);

  const std::string name_;
  const size_t number_;  // of the machine's simulated devices
  const SimOptions options_;
  const Capabilities capabilities_;
  const std::shared_ptr<Shared> shared_;
  SimMemory* const memory_;  // of shared_
  AtomicCounters counters_;
  std::array<std::unique_ptr<SimQueue>, kQueueKinds> queues_;
};

}  // namespace hetero::backend
