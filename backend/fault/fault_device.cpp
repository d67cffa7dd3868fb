#include "backend/fault/fault_device.h"

#include "backend/memory/allocator.h"

namespace hetero::backend {

const char* to_string(FaultKind kind) {
  switch (kind) {
    case FaultKind::kAllocation:
      return "allocation";
    case FaultKind::kCopy:
      return "copy";
    case FaultKind::kLaunch:
      return "launch";
    case FaultKind::kEventRecord:
      return "event record";
    case FaultKind::kEventWait:
      return "event wait";
    case FaultKind::kSegmentRecord:
      return "recording of a segment";
  }
  return "unknown";
}

class FaultDevice::FaultQueue final : public Queue {
 public:
  FaultQueue(FaultDevice& device, QueueKind kind) : device_(device), kind_(kind) {}

  Status launch(Task task) override {
    if (device_.next_call_fails(FaultKind::kLaunch)) return failure(FaultKind::kLaunch);
    return inner().launch(task);
  }
  Result<std::unique_ptr<Segment>> record_segment(std::span<const Task> tasks) override {
    if (device_.next_call_fails(FaultKind::kSegmentRecord)) return failure(FaultKind::kSegmentRecord);
    return inner().record_segment(tasks);
  }
  Status launch_segment(Segment& segment) override {
    if (device_.next_call_fails(FaultKind::kLaunch)) return failure(FaultKind::kLaunch);
    return inner().launch_segment(segment);
  }
  Status copy(void* destination, const void* source, size_t bytes) override {
    if (device_.next_call_fails(FaultKind::kCopy)) return failure(FaultKind::kCopy);
    return inner().copy(destination, source, bytes);
  }
  Status copy_batch(std::span<const CopyRange> ranges) override {
    if (device_.next_call_fails(FaultKind::kCopy)) return failure(FaultKind::kCopy);
    return inner().copy_batch(ranges);
  }
  Status record(Event& event) override {
    if (device_.next_call_fails(FaultKind::kEventRecord)) return failure(FaultKind::kEventRecord);
    return inner().record(event);
  }
  Status wait(Event& event) override {
    if (device_.next_call_fails(FaultKind::kEventWait)) return failure(FaultKind::kEventWait);
    return inner().wait(event);
  }
  Status synchronize() override { return inner().synchronize(); }

 private:
  Queue& inner() { return device_.device_.queue(kind_); }
  Status failure(FaultKind kind) const {
    return Status(ErrorClass::kDevice,
                  device_.name() + ": injected failure of a " + to_string(kind) + " on queue " + to_string(kind_));
  }

  FaultDevice& device_;
  const QueueKind kind_;
};

FaultDevice::FaultDevice(Device& device) : device_(device) {
  for (int kind = 0; kind < kQueueKinds; ++kind) {
    queues_[static_cast<size_t>(kind)] = std::make_unique<FaultQueue>(*this, static_cast<QueueKind>(kind));
  }
}

FaultDevice::~FaultDevice() = default;

void FaultDevice::fail(FaultKind kind, int64_t nth, FaultDuration duration) {
  std::lock_guard guard(mutex_);
  Plan& plan = plans_[static_cast<size_t>(kind)];
  plan.fails_at = plan.calls + nth;
  plan.duration = duration;
}

void FaultDevice::heal() {
  std::lock_guard guard(mutex_);
  for (Plan& plan : plans_) plan.fails_at = 0;
}

int64_t FaultDevice::calls(FaultKind kind) const {
  std::lock_guard guard(mutex_);
  return plans_[static_cast<size_t>(kind)].calls;
}

int64_t FaultDevice::failures(FaultKind kind) const {
  std::lock_guard guard(mutex_);
  return plans_[static_cast<size_t>(kind)].failures;
}

bool FaultDevice::next_call_fails(FaultKind kind) {
  std::lock_guard guard(mutex_);
  Plan& plan = plans_[static_cast<size_t>(kind)];
  ++plan.calls;
  if (plan.fails_at == 0 || plan.calls < plan.fails_at) return false;
  if (plan.duration == FaultDuration::kOnce && plan.calls > plan.fails_at) return false;
  ++plan.failures;
  return true;
}

Result<Block> FaultDevice::allocate(size_t bytes) {
  if (next_call_fails(FaultKind::kAllocation)) {
    return out_of_memory_error(name(), bytes, device_.memory_stats());
  }
  return device_.allocate(bytes);
}

Queue& FaultDevice::queue(QueueKind kind) { return *queues_[static_cast<size_t>(kind)]; }

}  // namespace hetero::backend
