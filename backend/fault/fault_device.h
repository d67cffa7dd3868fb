// FaultDevice: wraps any Device and makes its calls fail on demand.
//
// It forwards everything and counts the calls of each kind. The k-th call of a kind can fail, once
// or for ever, before it reaches the device: nothing is allocated, copied, launched, recorded or
// waited for. A batch of copies is one call. Launching a segment is a call of kLaunch. Blocks,
// Events and the name are the wrapped device's own, so both devices' queues accept them, and
// callers cannot tell the two apart.
//
//   FaultDevice device(registry_device);
//   device.fail(FaultKind::kAllocation, 3);                       // the third from now on fails
//   device.fail(FaultKind::kLaunch, 1, FaultDuration::kForEver);  // nothing launches any more
//
// Thread safety: any thread. Calls of several threads are numbered in the order of counting.
// Ownership: the wrapped device must outlive the FaultDevice.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "backend/device/device.h"

namespace hetero::backend {

enum class FaultKind : uint8_t { kAllocation, kCopy, kLaunch, kEventRecord, kEventWait, kSegmentRecord };
inline constexpr int kFaultKinds = 6;
const char* to_string(FaultKind kind);

enum class FaultDuration : uint8_t { kOnce, kForEver };

class FaultDevice : public Device {
 public:
  explicit FaultDevice(Device& device);
  ~FaultDevice() override;

  // Makes the `nth` call of this kind from now on fail (1 is the next one), and with kForEver all
  // after it too. Allocations fail with kResource and the figures of an out-of-memory error, the
  // others with kDevice. Replaces what was set for the kind before. REQUIRES: nth >= 1.
  void fail(FaultKind kind, int64_t nth, FaultDuration duration = FaultDuration::kOnce);
  // No more failures. Counts stay.
  void heal();

  // How many calls of this kind were made, failed ones included; and how many failed.
  int64_t calls(FaultKind kind) const;
  int64_t failures(FaultKind kind) const;

  // From now on the time of its events counts as real, as if it were a GPU. REQUIRES: nothing was
  // run on it.
  void hide_clock() { hides_clock_ = true; }

  Device& device() const { return device_; }

  const std::string& name() const override { return device_.name(); }
  const Capabilities& capabilities() const override { return device_.capabilities(); }
  Result<Block> allocate(size_t bytes) override;
  void* kernel_address(void* data) override { return device_.kernel_address(data); }
  bool runs_host_kernels() const override { return device_.runs_host_kernels(); }
  bool can_fuse(const FusedKernel& kernel) const override { return device_.can_fuse(kernel); }
  Result<bool> run_fused(const FusedCall& call) override { return device_.run_fused(call); }
  void prepare_fused(const FusedCall& call) override { device_.prepare_fused(call); }
  int64_t provisional_runs() const override { return device_.provisional_runs(); }
  std::optional<PeerLink> link_from(const Device& other) const override { return device_.link_from(other); }
  const Device& real() const override { return device_.real(); }
  Queue& queue(QueueKind kind) override;
  std::unique_ptr<Event> create_event() override { return device_.create_event(); }
  std::unique_ptr<Event> create_timed_event() override { return device_.create_timed_event(); }
  Result<double> seconds_between(const Event& first, const Event& second) const override {
    return device_.seconds_between(first, second);
  }
  Status synchronize() override { return device_.synchronize(); }
  bool has_virtual_clock() const override { return !hides_clock_ && device_.has_virtual_clock(); }
  void advance_host(double seconds) override { device_.advance_host(seconds); }
  double host_seconds() const override { return device_.host_seconds(); }
  double queue_seconds(QueueKind kind) const override { return device_.queue_seconds(kind); }
  void hold_queue(QueueKind kind, double until) override { device_.hold_queue(kind, until); }
  Status account_external(int64_t bytes) override { return device_.account_external(bytes); }
  void empty_cache() override { device_.empty_cache(); }
  void set_memory_limit(size_t bytes) override { device_.set_memory_limit(bytes); }
  MemoryStats memory_stats() const override { return device_.memory_stats(); }
  void reset_peak() override { device_.reset_peak(); }
  DeviceCounters counters() const override { return device_.counters(); }

 private:
  class FaultQueue;
  struct Plan {
    int64_t calls = 0;
    int64_t failures = 0;
    int64_t fails_at = 0;  // the value of `calls` that fails; 0 for never
    FaultDuration duration = FaultDuration::kOnce;
  };

  // Counts a call and says whether it fails.
  bool next_call_fails(FaultKind kind);

  Device& device_;
  std::atomic<bool> hides_clock_{false};
  mutable std::mutex mutex_;
  std::array<Plan, kFaultKinds> plans_;  // guarded by mutex_
  std::array<std::unique_ptr<FaultQueue>, kQueueKinds> queues_;
};

}  // namespace hetero::backend
