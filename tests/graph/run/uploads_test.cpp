// Uploads for a later program: they overlap with the program at hand, are nothing to it, and where
// they fail nothing has happened.

#include <cstring>

#include "backend/fault/fault_device.h"
#include "backend/registry/registry.h"
#include "backend/sim/sim_device.h"
#include "graph/run/executor.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr uint64_t kBytes = 1 << 20;
constexpr double kBandwidth = 1e9;

// A chain of products on the accelerator, and bytes on the host that it does not touch.
struct Case {
  Program program;
  Binding waiting;

  Case() {
    BufferId x = program.input(4096);
    const BufferId weight = program.input(4096);
    for (int i = 0; i < 8; ++i) x = program.define(test_ops().matmul, 4096, {program.read(x), program.read(weight)});
    program.escape(x);
    waiting.blocks[kCpu] = std::move(backend::cpu_device().allocate(kBytes).value());
    waiting.valid_on = 1u << kCpu;
    auto* const floats = static_cast<float*>(waiting.blocks[kCpu].data());
    for (size_t i = 0; i < kBytes / sizeof(float); ++i) floats[i] = static_cast<float>(i);
  }

  Results run(const Devices& devices, RunTimes* times, uint64_t most_bytes = UINT64_MAX) {
    PlanOptions options = options_for(devices);
    options.policy = Policy::kAccelerator;
    const Plan plan = program.plan(options);
    const Uploads uploads{.to = kAccelerator, .entries = {{&waiting, kBytes}}, .most_bytes = most_bytes};
    Results results;
    results.bindings = program.bind(devices);
    const std::vector<Binding*> bound = program.pointers(results.bindings);
    Executor executor(devices);
    executor.begin(program.graph, plan, bound, results.counts, times, &uploads);
    executor.go_on(nullptr);
    results.status = executor.end();
    return results;
  }
};

std::unique_ptr<backend::SimDevice> slow_link() {
  auto sim = backend::SimDevice::create({.h2d_bandwidth = kBandwidth, .copy_latency = 1e-6});
  REQUIRE(sim.ok());
  return std::move(sim.value());
}

}  // namespace

TEST_CASE("uploads: they go while the program runs, and it takes no longer") {
  const auto sim = slow_link();
  const Devices devices{test_devices()[kCpu], sim.get()};
  Case without;
  Case with;
  RunTimes alone, times;
  Results expected = without.run(devices, &alone, 0);
  without.program.read_values(expected, devices);
  CHECK(without.waiting.valid_on == 1u << kCpu);
  CHECK(expected.counts.uploads_ahead == 0);
  const double begin = sim->host_seconds();
  Results results = with.run(devices, &times);
  const double all = sim->host_seconds() - begin;
  with.program.read_values(results, devices);
  REQUIRE(results.status.ok());
  CHECK(results.values == expected.values);
  CHECK(results.counts.uploads_ahead == 1);
  CHECK(results.counts.copied_bytes[kAccelerator] == expected.counts.copied_bytes[kAccelerator] + int64_t{kBytes});
  CHECK(times.seconds == Approx(alone.seconds).epsilon(1e-6));
  CHECK(all < times.seconds + kBytes / kBandwidth);
  CHECK(all >= kBytes / kBandwidth);
  // The bytes are in both places.
  REQUIRE(with.waiting.valid_on == (1u << kCpu | 1u << kAccelerator));
  std::vector<float> back(kBytes / sizeof(float));
  REQUIRE(sim->queue(backend::QueueKind::kDeviceToHost)
              .copy(back.data(), with.waiting.blocks[kAccelerator].data(), kBytes)
              .ok());
  REQUIRE(sim->queue(backend::QueueKind::kDeviceToHost).synchronize().ok());
  CHECK(std::memcmp(back.data(), with.waiting.blocks[kCpu].data(), kBytes) == 0);
}

TEST_CASE("uploads: what the accelerator has no room for stays on the host") {
  const auto sim = slow_link();
  const Devices devices{test_devices()[kCpu], sim.get()};
  for (const uint64_t most : {kBytes, kBytes / 2}) {
    Case small;
    CHECK(small.run(devices, nullptr, most).status.ok());
    CHECK(small.waiting.valid_on == 1u << kCpu);
    CHECK(!small.waiting.blocks[kAccelerator]);
  }
  Case capped;
  sim->set_memory_limit(kBytes);
  CHECK(capped.run(devices, nullptr).status.ok());
  CHECK(capped.waiting.valid_on == 1u << kCpu);
}

TEST_CASE("uploads: where anything of them fails, the program is what it was") {
  using backend::FaultKind;
  int failed = 0;
  for (const FaultKind kind : {FaultKind::kAllocation, FaultKind::kCopy, FaultKind::kEventRecord}) {
    for (int nth = 1; nth < 16; ++nth) {
      const auto sim = slow_link();
      backend::FaultDevice faulty(*sim);
      const Devices devices{test_devices()[kCpu], &faulty};
      Case tried;
      faulty.fail(kind, nth);
      const Results results = tried.run(devices, nullptr);
      const bool uploaded = (tried.waiting.valid_on >> kAccelerator & 1) != 0;
      CHECK(uploaded == static_cast<bool>(tried.waiting.blocks[kAccelerator]));
      CHECK((tried.waiting.valid_on & 1u << kCpu) != 0);
      failed += results.status.ok() && !uploaded;
    }
  }
  CHECK(failed >= 2);
}

}  // namespace hetero::graph::testing
