#include "backend/cpu/cpu_device.h"

#include <cstring>
#include <typeinfo>

#include "backend/cpu/fused/launch.h"
#include "backend/cpu/worker_queue.h"
#include "backend/fused/call.h"

namespace hetero::backend {
class CpuDevice::InlineQueue final : public Queue {
 public:
  InlineQueue(AtomicCounters& counters, QueueKind kind) : counters_(counters), kind_(kind) {}

  Status launch(Task task) override {
    counters_.count_launch();
    task.run(task.context);
    return Status();
  }

  Status copy(void* destination, const void* source, size_t bytes) override {
    counters_.count_copy(kind_ == QueueKind::kHostToDevice, kind_ == QueueKind::kDeviceToHost, bytes);
    if (bytes != 0) std::memmove(destination, source, bytes);
    return Status();
  }

  Status record(Event& event) override {
    if (typeid(event) != typeid(CpuEvent)) {
      return Status(ErrorClass::kUsage, "a cpu queue can record only events that the cpu created");
    }
    counters_.count_record();
    static_cast<CpuEvent&>(event).set_record(nullptr);
    return Status();
  }

  Status wait(Event& event) override {
    counters_.count_wait();
    return event.synchronize();
  }

  Status synchronize() override { return Status(); }

 private:
  AtomicCounters& counters_;
  const QueueKind kind_;
};

CpuDevice::CpuDevice()
    : capabilities_{.host_accessible = true, .inline_queues = true}, allocator_(host_memory(), name_) {
  for (size_t kind = 0; kind < queues_.size(); ++kind) {
    if (static_cast<QueueKind>(kind) == kCpuWorker) {
      queues_[kind] = std::make_unique<WorkerQueue>(counters_);
    } else {
      queues_[kind] = std::make_unique<InlineQueue>(counters_, static_cast<QueueKind>(kind));
    }
  }
}

Result<bool> CpuDevice::run_fused(const FusedCall& call) {
  return backend::run_fused(call.launch, call.operands, call.numbers);
}

std::unique_ptr<Event> CpuDevice::create_event() { return std::make_unique<CpuEvent>(); }

Status CpuDevice::synchronize() { return queue(kCpuWorker).synchronize(); }

}  // namespace hetero::backend
