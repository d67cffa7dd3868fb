#include "backend/sim/sim_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/cpu_device.h"
#include "backend/fault/fault_device.h"
#include "backend/memory/address_space.h"
#include "tests/backend/child.h"
#include "tests/backend/sim/sim_fixture.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using namespace testing;

TEST_CASE("the host can neither read nor write the device's memory") {
  const auto device = make_sim();
  Block block = take(*device, 4096);
  volatile char* data = static_cast<char*>(block.data());
  REQUIRE(run_in_child([&] { return data[0]; }).died_of_fault());
  REQUIRE(run_in_child([&] { return data[4095]; }).died_of_fault());
  REQUIRE(run_in_child([&] {
            data[0] = 1;
            return 0;
          }).died_of_fault());
}

TEST_CASE("a host access to the device's memory is explained") {
  const auto device = make_sim();
  Block block = take(*device, 4096);
  const ChildOutcome outcome = run_in_child([&] {
    address_space::install_fault_handler(nullptr);
    return *static_cast<volatile char*>(block.data());
  });
  REQUIRE(outcome.died_of_fault());
  REQUIRE(outcome.error_output.find("hetero: the host touched the bytes of a hetero tensor") == 0);
}

TEST_CASE("a queue waits for another queue's event and for nothing else") {
  const auto device = make_sim();
  Gate gate;
  std::vector<std::string> order;
  auto on_compute = [&] { order.push_back("compute"); };
  auto on_copy_queue = [&] { order.push_back("h2d"); };
  auto unordered = [] {};
  const auto event = device->create_event();
  Queue& compute = device->queue(QueueKind::kCompute);
  Queue& in = device->queue(QueueKind::kHostToDevice);
  Queue& out = device->queue(QueueKind::kDeviceToHost);
  REQUIRE(compute.launch(gate.task()).ok());
  REQUIRE(compute.launch(task_of(on_compute)).ok());
  REQUIRE(compute.record(*event).ok());
  REQUIRE(in.wait(*event).ok());
  REQUIRE(in.launch(task_of(on_copy_queue)).ok());
  REQUIRE(out.launch(task_of(unordered)).ok());
  REQUIRE(out.synchronize().ok());  // not held up by the gate
  REQUIRE_FALSE(event->query());
  gate.open();
  REQUIRE(in.synchronize().ok());
  REQUIRE(event->query());
  REQUIRE(order == std::vector<std::string>{"compute", "h2d"});
}

TEST_CASE("a wait captures the last record at the time of the call") {
  const auto device = make_sim();
  Gate gate;
  const auto event = device->create_event();
  bool ran = false;
  auto run = [&] { ran = true; };
  Queue& compute = device->queue(QueueKind::kCompute);
  Queue& in = device->queue(QueueKind::kHostToDevice);
  REQUIRE(compute.record(*event).ok());
  REQUIRE(event->synchronize().ok());
  REQUIRE(in.wait(*event).ok());  // on the record that is done
  REQUIRE(compute.launch(gate.task()).ok());
  REQUIRE(compute.record(*event).ok());
  REQUIRE(in.launch(task_of(run)).ok());
  REQUIRE(in.synchronize().ok());  // would hang if it waited for the second record
  REQUIRE(ran);
  REQUIRE_FALSE(event->query());
}

TEST_CASE("recording again elsewhere does not release a wait for the earlier record") {
  const auto device = make_sim();
  Gate gate;
  const auto event = device->create_event();
  std::atomic<bool> ran{false};
  auto run = [&] { ran = true; };
  Queue& compute = device->queue(QueueKind::kCompute);
  Queue& in = device->queue(QueueKind::kHostToDevice);
  Queue& out = device->queue(QueueKind::kDeviceToHost);
  REQUIRE(compute.launch(gate.task()).ok());
  REQUIRE(compute.record(*event).ok());
  REQUIRE(in.wait(*event).ok());
  REQUIRE(in.launch(task_of(run)).ok());
  REQUIRE(out.record(*event).ok());
  REQUIRE(event->synchronize().ok());  // the last record is done
  REQUIRE(event->query());
  REQUIRE_FALSE(ran);
  gate.open();
  REQUIRE(in.synchronize().ok());
  REQUIRE(ran);
}

TEST_CASE("an event may be destroyed while a queue waits for it") {
  const auto device = make_sim();
  Gate gate;
  bool ran = false;
  auto run = [&] { ran = true; };
  auto event = device->create_event();
  REQUIRE(device->queue(QueueKind::kCompute).launch(gate.task()).ok());
  REQUIRE(device->queue(QueueKind::kCompute).record(*event).ok());
  REQUIRE(device->queue(QueueKind::kHostToDevice).wait(*event).ok());
  REQUIRE(device->queue(QueueKind::kHostToDevice).launch(task_of(run)).ok());
  event.reset();
  gate.open();
  REQUIRE(device->synchronize().ok());
  REQUIRE(ran);
}

TEST_CASE("a chain of events across all queues keeps its order") {
  const auto device = make_sim({.capacity_bytes = kMiB, .schedule_seed = 7});
  constexpr int kSteps = 300;
  int value = 0;  // not atomic: only the events order the accesses
  int wrong = 0;
  std::vector<std::unique_ptr<Event>> events;
  struct Step {
    int* value;
    int* wrong;
    int expected;
  };
  std::vector<Step> steps(kSteps);
  for (int i = 0; i < kSteps; ++i) {
    steps[i] = {&value, &wrong, i};
    Queue& queue = device->queue(static_cast<QueueKind>(i % kQueueKinds));
    if (i > 0) REQUIRE(queue.wait(*events.back()).ok());
    const auto run = [](void* context) {
      auto* step = static_cast<Step*>(context);
      *step->wrong += *step->value != step->expected;
      ++*step->value;
    };
    REQUIRE(queue.launch({run, &steps[i]}).ok());
    events.push_back(device->create_event());
    REQUIRE(queue.record(*events.back()).ok());
  }
  REQUIRE(events.back()->synchronize().ok());
  REQUIRE(value == kSteps);
  REQUIRE(wrong == 0);
}

TEST_CASE("destroying the device runs what was submitted") {
  int runs = 0;
  auto count = [&] { ++runs; };
  {
    const auto device = make_sim();
    const auto event = device->create_event();
    for (int i = 0; i < 10; ++i) REQUIRE(device->queue(QueueKind::kCompute).launch(task_of(count)).ok());
    REQUIRE(device->queue(QueueKind::kCompute).record(*event).ok());
    REQUIRE(device->queue(QueueKind::kDeviceToHost).wait(*event).ok());
    REQUIRE(device->queue(QueueKind::kDeviceToHost).launch(task_of(count)).ok());
  }
  REQUIRE(runs == 11);
}

TEST_CASE("a task that synchronizes with its own queue gets an error instead of a deadlock") {
  const auto device = make_sim();
  Status status;
  auto synchronize = [&] { status = device->queue(QueueKind::kCompute).synchronize(); };
  REQUIRE(device->queue(QueueKind::kCompute).launch(task_of(synchronize)).ok());
  REQUIRE(device->synchronize().ok());
  REQUIRE_FALSE(status.ok());
  REQUIRE(status.error_class() == ErrorClass::kUsage);
}

TEST_CASE("each worker runs the start hook once before its first command") {
  static thread_local int hook_runs = 0;
  set_worker_start_hook([] { ++hook_runs; });
  const auto device = make_sim();
  int seen = -1;
  auto look = [&] { seen = hook_runs; };
  for (int i = 0; i < 2; ++i) REQUIRE(device->queue(QueueKind::kCompute).launch(task_of(look)).ok());
  REQUIRE(device->synchronize().ok());
  set_worker_start_hook(nullptr);
  REQUIRE(seen == 1);
  REQUIRE(hook_runs == 0);  // this thread's own
}

TEST_CASE("the capacity refuses a block with the figures and freed memory is available again") {
  const auto device = make_sim({.capacity_bytes = 10 * kMiB});
  REQUIRE(device->memory_stats().limit_bytes == static_cast<int64_t>(10 * kMiB));
  Block most = take(*device, 8 * kMiB);
  const Result<Block> refused = device->allocate(3 * kMiB);
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.status().error_class() == ErrorClass::kResource);
  REQUIRE(refused.status().message().find("hetero out of memory. Tried to allocate 3.00 MiB; 8.00 MiB "
                                          "already allocated, limit 10.00 MiB") == 0);
  most.reset();
  Block all = take(*device, 10 * kMiB);
  REQUIRE_FALSE(device->allocate(0).ok());
}

TEST_CASE("a memory limit above the capacity does not raise it") {
  const auto device = make_sim({.capacity_bytes = kMiB});
  device->set_memory_limit(100 * kMiB);
  REQUIRE(device->memory_stats().limit_bytes == static_cast<int64_t>(kMiB));
  REQUIRE_FALSE(device->allocate(kMiB + 1).ok());
}

TEST_CASE("a large capacity costs nothing until it is used") {
  const auto device = make_sim({.capacity_bytes = size_t{16} << 30});
  Block block = take(*device, size_t{12} << 30);
  REQUIRE(byte_at(*device, static_cast<char*>(block.data()) + (size_t{12} << 30) - 1) == 0);
}

TEST_CASE("memory that was not written reads as poison, before use and after release") {
  const auto device = make_sim();
  Block block = take(*device, 1000);
  const void* data = block.data();
  REQUIRE(byte_at(*device, data) == SimMemory::kPoison);
  auto write = [&] { static_cast<unsigned char*>(device->kernel_address(block.data()))[0] = 1; };
  REQUIRE(device->queue(QueueKind::kCompute).launch(task_of(write)).ok());
  REQUIRE(byte_at(*device, data) == 1);
  block.reset();
  REQUIRE(byte_at(*device, data) == SimMemory::kPoison);
}

TEST_CASE("a write one byte beyond a block is found when the block is released") {
  for (int64_t offset : {int64_t{-1}, int64_t{1000}, int64_t{1000 + 63}}) {
    const auto device = make_sim();
    Block block = take(*device, 1000);
    auto overrun = [&] { static_cast<unsigned char*>(device->kernel_address(block.data()))[offset] = 1; };
    REQUIRE(device->queue(QueueKind::kCompute).launch(task_of(overrun)).ok());
    REQUIRE(device->synchronize().ok());
    REQUIRE(device->guard_violations() == 0);
    block.reset();
    REQUIRE(device->guard_violations() == 1);
  }
}

TEST_CASE("a damaged guard band is reported on stderr") {
  const auto device = make_sim();
  const ChildOutcome outcome = run_in_child([] {
    auto memory = SimMemory::create(kMiB);
    Result<Block> block = memory.value()->allocate(1000);
    static_cast<char*>(memory.value()->kernel_address(block.value().data()))[1000] = 1;
    block.value().reset();
    return static_cast<int>(memory.value()->guard_violations());
  });
  REQUIRE(outcome.exit_code == 1);
  REQUIRE(outcome.error_output.find("outside the block of 1000 bytes") != std::string::npos);
}

TEST_CASE("a block that stays within its bytes leaves the guards intact") {
  const auto device = make_sim();
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{4096}, size_t{100001}}) {
    Block block = take(*device, bytes);
    auto fill = [&] {
      auto* data = static_cast<unsigned char*>(device->kernel_address(block.data()));
      std::fill(data, data + bytes, 0x77);
    };
    REQUIRE(device->queue(QueueKind::kCompute).launch(task_of(fill)).ok());
    REQUIRE(device->synchronize().ok());
  }
  REQUIRE(device->guard_violations() == 0);
}

TEST_CASE("released ranges are merged and used again") {
  const auto device = make_sim({.capacity_bytes = 16 * kMiB});
  std::vector<Block> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(take(*device, kMiB - 4096));
  void* const lowest = blocks.front().data();
  blocks.clear();
  Block whole = take(*device, 15 * kMiB);
  REQUIRE(whole.data() == lowest);
  REQUIRE(device->memory_stats().reused_blocks == 1);
}

TEST_CASE("live blocks of the device do not overlap, guards included") {
  const auto device = make_sim();
  std::vector<Block> blocks;
  uint32_t random = 1;
  for (int i = 0; i < 2000; ++i) {
    random = random * 1664525u + 1013904223u;
    if (blocks.size() > 50 && (random >> 31) != 0) {
      blocks.erase(blocks.begin() + static_cast<int64_t>((random >> 8) % blocks.size()));
    } else {
      blocks.push_back(take(*device, (random >> 8) % 20000));
    }
  }
  std::vector<std::pair<uintptr_t, size_t>> ranges;
  for (const Block& block : blocks) {
    ranges.emplace_back(reinterpret_cast<uintptr_t>(block.data()), block.bytes());
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    REQUIRE(ranges[i - 1].first + ranges[i - 1].second + SimMemory::kGuardBytes <= ranges[i].first);
  }
  blocks.clear();
  REQUIRE(device->memory_stats().allocated_bytes == 0);
  REQUIRE(device->memory_stats().reserved_bytes == 0);
  REQUIRE(device->guard_violations() == 0);
}

TEST_CASE("a copy that reaches beyond the device's memory or uses an identity address is refused") {
  const auto device = make_sim({.capacity_bytes = kMiB});
  Block block = take(*device, 64);
  std::vector<char> host(16 * kMiB);
  Queue& queue = device->queue(QueueKind::kHostToDevice);
  const Status beyond = queue.copy(block.data(), host.data(), host.size());
  REQUIRE_FALSE(beyond.ok());
  REQUIRE(beyond.error_class() == ErrorClass::kUsage);
  void* identity = address_space::reserve(64);
  const Status unreal = queue.copy(block.data(), identity, 64);
  REQUIRE_FALSE(unreal.ok());
  REQUIRE(unreal.error_class() == ErrorClass::kUsage);
  address_space::release(identity, 64);
}

TEST_CASE("copies within the device are not counted as transfers") {
  const auto device = make_sim();
  Block from = take(*device, 64);
  Block to = take(*device, 64);
  REQUIRE(device->queue(QueueKind::kCompute).copy(to.data(), from.data(), 64).ok());
  REQUIRE(device->synchronize().ok());
  REQUIRE(device->counters().copies_in == 0);
  REQUIRE(device->counters().copies_out == 0);
}

TEST_CASE("empty_cache gives the pages of free memory back") {
  const auto device = make_sim();
  Block block = take(*device, 8 * kMiB);
  const void* data = block.data();
  block.reset();
  REQUIRE(byte_at(*device, data) == SimMemory::kPoison);
  device->empty_cache();
  REQUIRE(byte_at(*device, static_cast<const char*>(data) + 4 * kMiB) == 0);
}

TEST_CASE("a sleeping device does not keep a process from exiting") {
  const ChildOutcome outcome = run_in_child([]() -> int {
    auto device = SimDevice::create({.capacity_bytes = kMiB});
    auto nothing = [] {};
    for (int kind = 0; kind < kQueueKinds; ++kind) {
      if (!device.value()->queue(static_cast<QueueKind>(kind)).launch(task_of(nothing)).ok()) return 1;
    }
    if (!device.value()->synchronize().ok()) return 2;
    static_cast<void>(device.value().release());  // leaked, as the registry does
    std::exit(0);
  });
  REQUIRE(outcome.signal == 0);
  REQUIRE(outcome.exit_code == 0);
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow a fork of a process with threads
TEST_CASE("a forked child is refused, does not hang, and does not harm the parent's memory") {
  auto device = make_sim();
  Block block = take(*device, 64);
  const auto event = device->create_event();
  auto write = [&] { static_cast<char*>(device->kernel_address(block.data()))[0] = 42; };
  REQUIRE(device->queue(QueueKind::kCompute).launch(task_of(write)).ok());
  REQUIRE(device->queue(QueueKind::kCompute).record(*event).ok());
  REQUIRE(device->synchronize().ok());
  const ChildOutcome outcome = run_in_child([&] {
    Queue& queue = device->queue(QueueKind::kCompute);
    const bool refused = !device->allocate(64).ok() && !queue.launch(task_of(write)).ok() &&
                         !queue.record(*event).ok() && !queue.wait(*event).ok() && !queue.synchronize().ok() &&
                         !event->synchronize().ok() && !device->synchronize().ok() &&
                         !device->seconds_between(*event, *event).ok() && device->host_seconds() == 0;
    block.reset();
    device.reset();
    return refused ? 0 : 1;
  });
  REQUIRE(outcome.signal == 0);
  REQUIRE(outcome.exit_code == 0);
  REQUIRE(byte_at(*device, block.data()) == 42);
}
#endif

TEST_CASE("a capacity that no address space holds is refused") {
  const auto device = SimDevice::create({.capacity_bytes = size_t{1} << 60});
  REQUIRE_FALSE(device.ok());
  REQUIRE(device.status().error_class() == ErrorClass::kUsage);
}

}  // namespace
}  // namespace hetero::backend
