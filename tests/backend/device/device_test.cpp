// Promises of backend/device/device.h that every device keeps: each test runs on all of them.

#include "backend/device/device.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "tests/backend/device/tasks.h"
#include "tests/catch/catch.h"

#if defined(HETERO_WITH_CUDA)
#include "backend/cuda/cuda_device.h"
#endif

namespace hetero::backend {
namespace {

using testing::take;
using testing::task_of;

std::unique_ptr<SimDevice> make_sim(uint64_t seed) {
  auto device = SimDevice::create({.capacity_bytes = size_t{64} << 20, .schedule_seed = seed});
  REQUIRE(device.ok());
  return std::move(device.value());
}

// A GPU, where there is one; cuda_test.cpp says when there is none.
template <typename Body>
void on_gpu(Body body) {
#if defined(HETERO_WITH_CUDA)
  const Result<std::unique_ptr<CudaDevice>> gpu = CudaDevice::create();
  if (!gpu.ok()) return;
  body(*gpu.value());
  FaultDevice wrapped(*gpu.value());
  body(wrapped);
#else
  static_cast<void>(body);
#endif
}

template <typename Body>
void on_every_device(Body body) {
  on_gpu(body);
  CpuDevice cpu;
  body(cpu);
  for (uint64_t seed : {0, 1, 2}) {
    const std::unique_ptr<SimDevice> sim = make_sim(seed);
    body(*sim);
    FaultDevice wrapped(*sim);
    body(wrapped);
  }
}

TEST_CASE("bytes copied in, changed by a task and copied out come back changed") {
  on_every_device([](Device& device) {
    constexpr size_t kCount = 100000;
    std::vector<int32_t> host(kCount);
    std::iota(host.begin(), host.end(), 0);
    std::vector<int32_t> result(kCount);
    Block block = take(device, kCount * sizeof(int32_t));
    const auto copied_in = device.create_event();
    const auto computed = device.create_event();
    // A GPU's memory is none that the CPU's code changes.
    const int32_t step = device.runs_host_kernels() ? 1 : 0;
    auto increment = [&] {
      if (step == 0) return;
      auto* values = static_cast<int32_t*>(device.kernel_address(block.data()));
      for (size_t i = 0; i < kCount; ++i) values[i] += step;
    };

    Queue& in = device.queue(QueueKind::kHostToDevice);
    REQUIRE(in.copy(block.data(), host.data(), block.bytes()).ok());
    REQUIRE(in.record(*copied_in).ok());
    Queue& compute = device.queue(QueueKind::kCompute);
    REQUIRE(compute.wait(*copied_in).ok());
    REQUIRE(compute.launch(task_of(increment)).ok());
    REQUIRE(compute.record(*computed).ok());
    Queue& out = device.queue(QueueKind::kDeviceToHost);
    REQUIRE(out.wait(*computed).ok());
    REQUIRE(out.copy(result.data(), block.data(), block.bytes()).ok());
    REQUIRE(out.synchronize().ok());

    for (int32_t& value : host) value += step;
    REQUIRE(result == host);
  });
}

TEST_CASE("a queue runs its tasks in the order of submission") {
  on_every_device([](Device& device) {
    std::vector<int> order;
    auto append_one = [&] { order.push_back(1); };
    auto append_two = [&] { order.push_back(2); };
    std::vector<int> expected;
    for (int i = 0; i < 100; ++i) {
      REQUIRE(device.queue(QueueKind::kCompute).launch(task_of(append_one)).ok());
      REQUIRE(device.queue(QueueKind::kCompute).launch(task_of(append_two)).ok());
      expected.insert(expected.end(), {1, 2});
    }
    REQUIRE(device.synchronize().ok());
    REQUIRE(order == expected);
  });
}

TEST_CASE("an event that was never recorded counts as done") {
  on_every_device([](Device& device) {
    const auto event = device.create_event();
    REQUIRE(event->query());
    REQUIRE(event->synchronize().ok());
    REQUIRE(device.queue(QueueKind::kCompute).wait(*event).ok());
    REQUIRE(device.synchronize().ok());
  });
}

TEST_CASE("a synchronized event has everything before its record done") {
  on_every_device([](Device& device) {
    int value = 0;
    auto set = [&] { value = 42; };
    const auto event = device.create_event();
    REQUIRE(device.queue(QueueKind::kCompute).launch(task_of(set)).ok());
    REQUIRE(device.queue(QueueKind::kCompute).record(*event).ok());
    REQUIRE(event->synchronize().ok());
    REQUIRE(event->query());
    REQUIRE(value == 42);
  });
}

TEST_CASE("the CPU's queue continues only when the device's event is done") {
  on_every_device([](Device& device) {
    CpuDevice cpu;
    int value = 0;
    auto set = [&] { value = 42; };
    int seen = 0;
    auto read = [&] { seen = value; };
    const auto event = device.create_event();
    REQUIRE(device.queue(QueueKind::kCompute).launch(task_of(set)).ok());
    REQUIRE(device.queue(QueueKind::kCompute).record(*event).ok());
    REQUIRE(cpu.queue(QueueKind::kCompute).wait(*event).ok());
    REQUIRE(cpu.queue(QueueKind::kCompute).launch(task_of(read)).ok());
    REQUIRE(seen == 42);
    // And the other way round: the CPU's events are always done.
    const auto cpu_event = cpu.create_event();
    REQUIRE(cpu.queue(QueueKind::kCompute).record(*cpu_event).ok());
    REQUIRE(device.queue(QueueKind::kCompute).wait(*cpu_event).ok());
  });
}

TEST_CASE("a queue refuses to record another device's event") {
  on_every_device([](Device& device) {
    class ForeignEvent : public Event {
      bool query() const override { return true; }
      Status synchronize() override { return Status(); }
    };
    ForeignEvent event;
    const Status status = device.queue(QueueKind::kCompute).record(event);
    REQUIRE_FALSE(status.ok());
    REQUIRE(status.error_class() == ErrorClass::kUsage);
  });
}

TEST_CASE("copies of zero bytes and overlapping copies are allowed") {
  on_every_device([](Device& device) {
    Block block = take(device, 8);
    std::array<char, 8> host = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'};
    Queue& queue = device.queue(QueueKind::kHostToDevice);
    REQUIRE(queue.copy(block.data(), nullptr, 0).ok());
    REQUIRE(queue.copy(block.data(), host.data(), 8).ok());
    REQUIRE(queue.copy(static_cast<char*>(block.data()) + 2, block.data(), 6).ok());
    REQUIRE(queue.copy(host.data(), block.data(), 8).ok());
    REQUIRE(queue.synchronize().ok());
    REQUIRE(std::string(host.data(), 8) == "ababcdef");
  });
}

TEST_CASE("work that was submitted is counted") {
  on_every_device([](Device& device) {
    const DeviceCounters before = device.counters();
    Block block = take(device, 100);
    std::array<char, 100> host = {};
    auto nothing = [] {};
    const auto event = device.create_event();
    REQUIRE(device.queue(QueueKind::kHostToDevice).copy(block.data(), host.data(), 100).ok());
    REQUIRE(device.queue(QueueKind::kHostToDevice).record(*event).ok());
    REQUIRE(device.queue(QueueKind::kCompute).wait(*event).ok());
    REQUIRE(device.queue(QueueKind::kCompute).launch(task_of(nothing)).ok());
    REQUIRE(device.synchronize().ok());
    REQUIRE(device.queue(QueueKind::kDeviceToHost).copy(host.data(), block.data(), 30).ok());
    REQUIRE(device.synchronize().ok());
    const DeviceCounters after = device.counters();
    REQUIRE(after.launches - before.launches == 1);
    REQUIRE(after.copies_in - before.copies_in == 1);
    REQUIRE(after.copies_out - before.copies_out == 1);
    REQUIRE(after.bytes_in - before.bytes_in == 100);
    REQUIRE(after.bytes_out - before.bytes_out == 30);
    REQUIRE(after.events_recorded - before.events_recorded == 1);
    REQUIRE(after.events_waited - before.events_waited == 1);
  });
}

TEST_CASE("memory figures follow the blocks and the limit is kept") {
  on_every_device([](Device& device) {
    const MemoryStats before = device.memory_stats();
    {
      Block block = take(device, 1000);
      Block empty = take(device, 0);
      REQUIRE(empty.data() != nullptr);
      const MemoryStats during = device.memory_stats();
      REQUIRE(during.allocated_bytes - before.allocated_bytes == 1024 + 64);
      REQUIRE(during.allocations - before.allocations == 2);
      REQUIRE(during.reserved_bytes >= during.allocated_bytes);
    }
    REQUIRE(device.memory_stats().allocated_bytes == before.allocated_bytes);
    REQUIRE(device.memory_stats().peak_bytes >= 1088);
    device.reset_peak();
    REQUIRE(device.memory_stats().peak_bytes == before.allocated_bytes);

    device.set_memory_limit(1 << 20);
    const Result<Block> refused = device.allocate((1 << 20) + 1);
    REQUIRE_FALSE(refused.ok());
    REQUIRE(refused.status().error_class() == ErrorClass::kResource);
    REQUIRE(refused.status().message().find("limit 1.00 MiB") != std::string::npos);
    REQUIRE(device.allocate(1 << 20).ok());
    device.set_memory_limit(0);
    REQUIRE(device.allocate(2 << 20).ok());
  });
}

TEST_CASE("a device without segments says so and runs nothing") {
  CpuDevice cpu;
  Queue& queue = cpu.queue(QueueKind::kCompute);
  int runs = 0;
  const Task task{[](void* context) { ++*static_cast<int*>(context); }, &runs};
  const auto segment = queue.record_segment(std::vector<Task>{task});
  REQUIRE_FALSE(segment.ok());
  REQUIRE(segment.status().error_class() == ErrorClass::kUsage);
  REQUIRE(runs == 0);
}

TEST_CASE("threads may submit to the same queues at the same time") {
  on_every_device([](Device& device) {
    std::atomic<int> runs{0};
    auto count = [&] { runs.fetch_add(1); };
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        const auto event = device.create_event();
        for (int i = 0; i < 50; ++i) {
          Queue& queue = device.queue(QueueKind::kCompute);
          failures += !queue.launch(task_of(count)).ok();
          failures += !queue.record(*event).ok();
          failures += !device.queue(QueueKind::kHostToDevice).wait(*event).ok();
        }
        failures += !event->synchronize().ok();
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(failures == 0);
    REQUIRE(runs == 200);
    REQUIRE(device.synchronize().ok());
  });
}

TEST_CASE("queue kinds have names") {
  REQUIRE(std::string(to_string(QueueKind::kCompute)) == "compute");
  REQUIRE(std::string(to_string(QueueKind::kHostToDevice)) == "h2d");
  REQUIRE(std::string(to_string(QueueKind::kDeviceToHost)) == "d2h");
}

}  // namespace
}  // namespace hetero::backend
