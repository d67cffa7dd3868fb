#include "backend/fault/fault_device.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

int runs = 0;
const Task kCountingTask = {[](void*) { ++runs; }, nullptr};

// One call of the kind, on the device.
Status call(FaultDevice& device, FaultKind kind) {
  static std::array<char, 64> from = {};
  static std::array<char, 64> to = {};
  Queue& queue = device.queue(QueueKind::kCompute);
  const std::unique_ptr<Event> event = device.create_event();
  switch (kind) {
    case FaultKind::kAllocation:
      return device.allocate(64).status();
    case FaultKind::kCopy:
      return queue.copy(to.data(), from.data(), from.size());
    case FaultKind::kLaunch:
      return queue.launch(kCountingTask);
    case FaultKind::kEventRecord:
      return queue.record(*event);
    case FaultKind::kEventWait:
      return queue.wait(*event);
    case FaultKind::kSegmentRecord: {
      const Result<std::unique_ptr<Segment>> segment = queue.record_segment(std::vector<Task>{kCountingTask});
      // The CPU has none.
      const bool reached = !segment.ok() && segment.status().error_class() == ErrorClass::kUsage;
      return reached ? Status() : segment.status();
    }
  }
  return Status();
}

TEST_CASE("without orders a fault device forwards every call") {
  CpuDevice cpu;
  FaultDevice device(cpu);
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    REQUIRE(call(device, static_cast<FaultKind>(kind)).ok());
    REQUIRE(device.calls(static_cast<FaultKind>(kind)) == 1);
    REQUIRE(device.failures(static_cast<FaultKind>(kind)) == 0);
  }
  REQUIRE(device.name() == "cpu");
  REQUIRE(device.capabilities().host_accessible);
  REQUIRE(device.counters().launches == 1);
}

TEST_CASE("exactly the k-th call of a kind fails, once") {
  CpuDevice cpu;
  FaultDevice device(cpu);
  for (int k = 0; k < kFaultKinds; ++k) {
    const auto kind = static_cast<FaultKind>(k);
    REQUIRE(call(device, kind).ok());  // calls before the order do not count
    device.fail(kind, 3);
    for (int nth = 1; nth <= 6; ++nth) REQUIRE(call(device, kind).ok() == (nth != 3));
    REQUIRE(device.calls(kind) == 7);
    REQUIRE(device.failures(kind) == 1);
  }
}

TEST_CASE("for ever means from the k-th call on until healed") {
  CpuDevice cpu;
  FaultDevice device(cpu);
  for (int k = 0; k < kFaultKinds; ++k) {
    const auto kind = static_cast<FaultKind>(k);
    device.fail(kind, 2, FaultDuration::kForEver);
    for (int nth = 1; nth <= 5; ++nth) REQUIRE(call(device, kind).ok() == (nth < 2));
    device.heal();
    REQUIRE(call(device, kind).ok());
    REQUIRE(device.failures(kind) == 4);
  }
}

TEST_CASE("a failed launch does not run the task and a failed copy moves nothing") {
  CpuDevice cpu;
  FaultDevice device(cpu);
  device.fail(FaultKind::kLaunch, 1);
  runs = 0;
  const Status launch = device.queue(QueueKind::kCompute).launch(kCountingTask);
  REQUIRE(launch.error_class() == ErrorClass::kDevice);
  REQUIRE(launch.message() == "cpu: injected failure of a launch on queue compute");
  REQUIRE(runs == 0);

  device.fail(FaultKind::kCopy, 1);
  char from = 'a';
  char to = 'b';
  REQUIRE_FALSE(device.queue(QueueKind::kHostToDevice).copy(&to, &from, 1).ok());
  REQUIRE(to == 'b');
  REQUIRE(device.counters().launches == 0);
  REQUIRE(device.counters().copies_in == 0);
}

TEST_CASE("a batch of copies is one call, and fails as a whole") {
  CpuDevice cpu;
  FaultDevice device(cpu);
  const std::array<char, 2> from = {'a', 'b'};
  std::array<char, 2> to = {};
  const CopyRange ranges[] = {{&to[0], &from[0], 1}, {&to[1], &from[1], 1}};
  Queue& queue = device.queue(QueueKind::kHostToDevice);
  device.fail(FaultKind::kCopy, 1);
  REQUIRE_FALSE(queue.copy_batch(ranges).ok());
  REQUIRE(to == std::array<char, 2>{});
  REQUIRE(queue.copy_batch(ranges).ok());
  REQUIRE(to == from);
  REQUIRE(device.calls(FaultKind::kCopy) == 2);
}

TEST_CASE("a failed allocation looks like memory that ran out") {
  CpuDevice cpu;
  FaultDevice device(cpu);
  device.fail(FaultKind::kAllocation, 1);
  const Result<Block> refused = device.allocate(1 << 20);
  REQUIRE(refused.status().error_class() == ErrorClass::kResource);
  REQUIRE(refused.status().message().find("hetero out of memory. Tried to allocate 1.00 MiB") == 0);
  REQUIRE(device.memory_stats().allocations == 0);
  REQUIRE(device.allocate(1 << 20).ok());
}

TEST_CASE("one kind failing leaves the others alone") {
  CpuDevice cpu;
  FaultDevice device(cpu);
  device.fail(FaultKind::kEventWait, 1, FaultDuration::kForEver);
  REQUIRE_FALSE(call(device, FaultKind::kEventWait).ok());
  REQUIRE(call(device, FaultKind::kEventRecord).ok());
  REQUIRE(call(device, FaultKind::kLaunch).ok());
  REQUIRE(call(device, FaultKind::kAllocation).ok());
  REQUIRE(call(device, FaultKind::kCopy).ok());
}

}  // namespace
}  // namespace hetero::backend
