// CpuDevice: the host as a Device.
//
// Its queues are inline: launch and copy do their work on the calling thread before they return. So
// all that was submitted to them is done, and the order across them is the program's own. Waiting
// for an Event blocks the calling thread. The worker queue (worker_queue.h) is the exception: it
// has a thread. Memory comes from a CachingAllocator.
//
// Thread safety: any thread. Threads that launch at the same time run at the same time: an inline
// queue orders the work of one thread, and threads order themselves.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/device/atomic_counters.h"
#include "backend/device/device.h"
#include "backend/memory/allocator.h"

namespace hetero::backend {

class CpuDevice final : public Device {
 public:
  CpuDevice();

  const std::string& name() const override { return name_; }
  const Capabilities& capabilities() const override { return capabilities_; }
  Result<Block> allocate(size_t bytes) override { return allocator_.allocate(bytes); }
  Queue& queue(QueueKind kind) override { return *queues_[static_cast<size_t>(kind)]; }
  std::unique_ptr<Event> create_event() override;
  bool can_fuse(const FusedKernel&) const override { return true; }
  Result<bool> run_fused(const FusedCall& call) override;
  Status synchronize() override;
  Status account_external(int64_t bytes) override { return allocator_.account_external(bytes); }
  void empty_cache() override { allocator_.empty_cache(); }
  void set_memory_limit(size_t bytes) override { allocator_.set_memory_limit(bytes); }
  MemoryStats memory_stats() const override { return allocator_.stats(); }
  void reset_peak() override { allocator_.reset_peak(); }
  // Copies are counted by the queue they ran on; those of the compute queue stay on the host and
  // are not.
  DeviceCounters counters() const override { return counters_.read(); }

 private:
  class InlineQueue;

  const std::string name_ = "cpu";
  const Capabilities capabilities_;
  CachingAllocator allocator_;
  AtomicCounters counters_;
  std::array<std::unique_ptr<Queue>, kQueueKinds> queues_;
};

}  // namespace hetero::backend
