#include "backend/registry/registry.h"

#include <string>

#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "tests/backend/child.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

TEST_CASE("the CPU is always there, at index 0") {
  REQUIRE(cpu_device().name() == "cpu");
  REQUIRE(device_at(kCpu) == &cpu_device());
  REQUIRE(cpu_device().capabilities().host_accessible);
  REQUIRE(cpu_device().capabilities().inline_queues);
}

TEST_CASE("the accelerator is the one chosen, and none until then") {
  REQUIRE(choose_accelerator("none").ok());
  REQUIRE(accelerator() == nullptr);
  REQUIRE(device_at(kAccelerator) == nullptr);
  set_sim_options({.capacity_bytes = size_t{1} << 20});
  REQUIRE(choose_accelerator("sim").ok());
  Device* const sim = accelerator();
  REQUIRE(sim != nullptr);
  REQUIRE(sim->name() == "sim");
  REQUIRE(sim->memory_stats().limit_bytes == 1 << 20);
  REQUIRE(device_at(kAccelerator) == sim);
  REQUIRE(choose_accelerator("none").ok());
  REQUIRE(choose_accelerator("sim").ok());
  REQUIRE(accelerator() == sim);
  REQUIRE(choose_accelerator("none").ok());
}

TEST_CASE("new options make a new simulated device") {
  set_sim_options({.capacity_bytes = size_t{2} << 20});
  REQUIRE(choose_accelerator("sim").ok());
  REQUIRE(accelerator()->memory_stats().limit_bytes == 2 << 20);
  set_sim_options({});
  REQUIRE(choose_accelerator("sim").ok());
  REQUIRE(accelerator()->memory_stats().limit_bytes == int64_t{4} << 30);
  REQUIRE(choose_accelerator("none").ok());
}

TEST_CASE("an unknown accelerator is refused and the choice stays") {
  REQUIRE(choose_accelerator("sim").ok());
  Device* const before = accelerator();
  const Status status = choose_accelerator("tpu");
  REQUIRE_FALSE(status.ok());
  REQUIRE(status.error_class() == ErrorClass::kUsage);
  REQUIRE(status.message() == "unknown accelerator \"tpu\"; choose one of none, sim, cuda");
  REQUIRE(accelerator() == before);
  REQUIRE(choose_accelerator("none").ok());
}

TEST_CASE("asking whether there can be an accelerator makes none") {
  REQUIRE(choose_accelerator("none").ok());
  REQUIRE(check_accelerator("none").ok());
  REQUIRE(check_accelerator("sim").ok());
  REQUIRE(check_accelerator("tpu").error_class() == ErrorClass::kUsage);
  REQUIRE(accelerator() == nullptr);
}

TEST_CASE("an accelerator that a parent made is forgotten, and a child makes its own") {
  REQUIRE(choose_accelerator("sim").ok());
  Device* const parents = accelerator();
  const testing::ChildOutcome child = testing::run_in_child([parents] {
    forget_accelerator();
    if (accelerator() != nullptr || !choose_accelerator("sim").ok() || accelerator() == parents) return 1;
    return accelerator()->allocate(64).ok() && accelerator()->synchronize().ok() ? 0 : 2;
  });
  REQUIRE(child.exit_code == 0);
  REQUIRE(accelerator() == parents);
  REQUIRE(choose_accelerator("none").ok());
}

TEST_CASE("faults are put before devices, for all who ask, and taken away") {
  REQUIRE(choose_accelerator("none").ok());
  REQUIRE(interpose_faults(kAccelerator) == nullptr);
  REQUIRE(choose_accelerator("sim").ok());
  for (const DeviceIndex index : {kCpu, kAccelerator}) {
    Device* const device = device_at(index);
    FaultDevice* const faulty = interpose_faults(index);
    REQUIRE(faulty != nullptr);
    REQUIRE(device_at(index) == faulty);
    REQUIRE(&faulty->device() == device);
    REQUIRE(interpose_faults(index) == faulty);
    REQUIRE(device_at(index)->name() == device->name());
    faulty->fail(FaultKind::kAllocation, 1);
    REQUIRE_FALSE(device_at(index)->allocate(64).ok());
    REQUIRE(device_at(index)->allocate(64).ok());
    faulty->fail(FaultKind::kAllocation, 1, FaultDuration::kForEver);
    remove_faults();
    REQUIRE(device_at(index) == device);
    REQUIRE(interpose_faults(index) == faulty);
    REQUIRE(device_at(index)->allocate(64).ok());
    remove_faults();
  }
  REQUIRE(interpose_faults(kAccelerator) != nullptr);
  REQUIRE(choose_accelerator("none").ok());
  REQUIRE(accelerator() == nullptr);
  remove_faults();
}

#if !defined(HETERO_WITH_CUDA)
TEST_CASE("a CPU-only build says so when asked for cuda") {
  const Status status = choose_accelerator("cuda");
  REQUIRE_FALSE(status.ok());
  REQUIRE(status.error_class() == ErrorClass::kDevice);
  REQUIRE(status.message().find("CPU-only") != std::string::npos);
}
#endif

}  // namespace
}  // namespace hetero::backend
