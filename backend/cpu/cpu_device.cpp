#include "backend/cpu/cpu_device.h"

#include <cstring>
#include <typeinfo>

namespace hetero::backend {
namespace {

void add(std::atomic<int64_t>& counter, int64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }

int64_t read(const std::atomic<int64_t>& counter) { return counter.load(std::memory_order_relaxed); }

// Everything recorded before has run when record returns.
class CpuEvent final : public Event {
 public:
  bool query() const override { return true; }
  Status synchronize() override { return Status(); }
};

}  // namespace

class CpuDevice::InlineQueue final : public Queue {
 public:
  InlineQueue(Counters& counters, size_t kind) : counters_(counters), kind_(kind) {}

  Status launch(Task task) override {
    add(counters_.launches, 1);
    task.run(task.context);
    return Status();
  }

  Status copy(void* destination, const void* source, size_t bytes) override {
    add(counters_.copies[kind_], 1);
    add(counters_.bytes[kind_], static_cast<int64_t>(bytes));
    if (bytes != 0) std::memmove(destination, source, bytes);
    return Status();
  }

  Status record(Event& event) override {
    if (typeid(event) != typeid(CpuEvent)) {
      return Status(ErrorClass::kUsage, "a cpu queue can record only events that the cpu created");
    }
    add(counters_.events_recorded, 1);
    return Status();
  }

  Status wait(Event& event) override {
    add(counters_.events_waited, 1);
    return typeid(event) == typeid(CpuEvent) ? Status() : event.synchronize();
  }

  Status synchronize() override { return Status(); }

 private:
  Counters& counters_;
  const size_t kind_;
};

CpuDevice::CpuDevice()
    : capabilities_{.host_accessible = true, .inline_queues = true}, allocator_(host_memory(), name_) {
  for (size_t kind = 0; kind < queues_.size(); ++kind) {
    queues_[kind] = std::make_unique<InlineQueue>(counters_, kind);
  }
}

std::unique_ptr<Event> CpuDevice::create_event() { return std::make_unique<CpuEvent>(); }

DeviceCounters CpuDevice::counters() const {
  const auto in = static_cast<size_t>(QueueKind::kHostToDevice);
  const auto out = static_cast<size_t>(QueueKind::kDeviceToHost);
  return {.launches = read(counters_.launches),
          .copies_in = read(counters_.copies[in]),
          .copies_out = read(counters_.copies[out]),
          .bytes_in = read(counters_.bytes[in]),
          .bytes_out = read(counters_.bytes[out]),
          .events_recorded = read(counters_.events_recorded),
          .events_waited = read(counters_.events_waited)};
}

}  // namespace hetero::backend
