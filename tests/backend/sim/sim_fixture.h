// What the tests of SimDevice share.

#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "backend/sim/sim_device.h"
#include "tests/backend/device/tasks.h"
#include "tests/catch/catch.h"

namespace hetero::backend::testing {

inline constexpr size_t kMiB = size_t{1} << 20;

inline std::unique_ptr<SimDevice> make_sim(SimOptions options = {.capacity_bytes = 64 * kMiB}) {
  auto device = SimDevice::create(options);
  REQUIRE(device.ok());
  return std::move(device.value());
}

// A task that keeps its queue busy until it is opened.
class Gate {
 public:
  ~Gate() { open(); }
  void open() { opened_.store(true, std::memory_order_release); }
  Task task() {
    return {[](void* context) {
              auto* self = static_cast<Gate*>(context);
              while (!self->opened_.load(std::memory_order_acquire)) std::this_thread::yield();
            },
            this};
  }

 private:
  std::atomic<bool> opened_{false};
};

// What a task on the device reads at `data`.
inline unsigned char byte_at(SimDevice& device, const void* data) {
  unsigned char value = 0;
  auto read = [&] { value = *static_cast<unsigned char*>(device.kernel_address(const_cast<void*>(data))); };
  REQUIRE(device.queue(QueueKind::kCompute).launch(task_of(read)).ok());
  REQUIRE(device.synchronize().ok());
  return value;
}

}  // namespace hetero::backend::testing
