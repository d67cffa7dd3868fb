// Properties: any legal program gives, by any plan, the bits that the interpreter gives.

#include "backend/cpu/cpu_device.h"
#include "backend/sim/sim_device.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

void check_same(Program& program, const PlanOptions& options, const Devices& devices) {
  const Results expected = program.interpret();
  const Results got = program.run(options, devices);
  INFO(to_string(program.graph));
  INFO(to_string(program.plan(options)));
  REQUIRE(expected.status.ok());
  REQUIRE(got.status.ok());
  REQUIRE(same_values(program, got, expected));
}

}  // namespace

TEST_CASE("random programs on the CPU give the interpreter's bits") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Program program;
    make_random(program, random, 5 + round % 60, false);
    check_same(program, cpu_options(), {test_devices()[0], nullptr});
  }
}

TEST_CASE("random programs across both devices give the interpreter's bits") {
  std::mt19937 random(2);
  RunCounts counts;
  for (int round = 0; round < 150; ++round) {
    Program program;
    make_random(program, random, 5 + round % 60, true);
    check_same(program, mixed_options(), test_devices());
    const Results results = program.run(mixed_options());
    for (int d = 0; d < kTestDevices; ++d) {
      counts.kernels[d] += results.counts.kernels[d];
      counts.copied_bytes[d] += results.counts.copied_bytes[d];
    }
    counts.waits += results.counts.waits;
  }
  // The mechanism was there to be tested.
  for (int d = 0; d < kTestDevices; ++d) {
    CHECK(counts.kernels[d] > 1000);
    CHECK(counts.copied_bytes[d] > 1000);
  }
  CHECK(counts.waits > 1000);
}

TEST_CASE("random programs keep within the accelerator's memory, and give the same bits") {
  std::mt19937 random(3);
  int moved = 0;
  int kept = 0;
  for (int round = 0; round < 150; ++round) {
    Program program;
    make_random(program, random, 30, false);
    PlanOptions options = mixed_options();
    options.machine[1].bytes = 512 + 256 * static_cast<uint64_t>(round);
    check_same(program, options, test_devices());
    for (const Placement& placement : program.plan(options).placements) {
      moved += placement.reason == Reason::kNoMemory;
      kept += placement.device == backend::kAccelerator;
    }
  }
  CHECK(moved > 0);
  CHECK(kept > 0);
}

TEST_CASE("random programs on queues that stall at random give the same bits") {
  std::mt19937 random(4);
  for (int round = 0; round < 10; ++round) {
    auto sim = backend::SimDevice::create({.schedule_seed = static_cast<uint64_t>(round + 1)});
    REQUIRE(sim.ok());
    Program program;
    make_random(program, random, 40, true);
    check_same(program, mixed_options(), {test_devices()[0], sim.value().get()});
    CHECK(sim.value()->guard_violations() == 0);
  }
}

TEST_CASE("a run gives back all memory but the bindings'") {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    Program program;
    make_random(program, random, 40, true);
    int64_t before[kTestDevices];
    for (int d = 0; d < kTestDevices; ++d) {
      before[d] = test_devices()[d]->memory_stats().allocated_bytes;
    }
    { const Results results = program.run(mixed_options()); }
    for (int d = 0; d < kTestDevices; ++d) {
      CHECK(test_devices()[d]->memory_stats().allocated_bytes == before[d]);
    }
  }
}

}  // namespace hetero::graph::testing
