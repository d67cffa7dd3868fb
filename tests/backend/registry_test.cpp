#include "backend/registry.h"

#include <string>

#include "backend/sim/sim_device.h"
#include "tests/backend/catch.h"

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
