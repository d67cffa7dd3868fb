// Placement by thresholds: what they send to the CPU, and why.

#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/fixtures/steady.h"

namespace hetero::graph::testing {
namespace {

using backend::DeviceIndex;
using backend::kAccelerator;
using backend::kCpu;

constexpr int kLayers = 10;
constexpr int64_t kFloats = 1 << 16;
constexpr uint64_t kWeight = sizeof(float) * kFloats;

// A chain of products, each with a weight of its own.
void make_layers(Program& program) {
  BufferId x = program.input(64);
  for (int i = 0; i < kLayers; ++i) {
    const BufferId weight = program.input(kFloats);
    program.escape(weight);
    program.graph.buffers[weight].steady = true;
    x = program.define(test_ops().matmul, 64, {program.read(x), program.read(weight)});
  }
  program.escape(x);
}

// The accelerator is `speed` times as fast; copies take nothing.
PlanOptions thresholds(double speed) {
  PlanOptions options = both_options();
  options.policy = Policy::kThresholds;
  options.machine.cpu().rates = {.flops = 1e30, .memory_bandwidth = 1e9, .launch_latency = 1e-12};
  options.machine[1].rates = {.flops = 1e30,
                              .memory_bandwidth = speed * 1e9,
                              .copy_bandwidth = 1e15,
                              .copy_latency = 1e-12,
                              .launch_latency = 1e-12};
  return options;
}

int on_accelerator(const Plan& plan) {
  return static_cast<int>(std::ranges::count(plan.placements, kAccelerator, &Placement::device));
}

TEST_CASE("thresholds: what the accelerator does not do so many times as fast runs on the CPU") {
  Program program;
  make_layers(program);
  for (const auto& [speed, ratio, expected] :
       {std::tuple{1.9, 2.0, 0}, {2.1, 2.0, kLayers}, {2.1, 3.0, 0}, {0.9, 0.5, kLayers}}) {
    PlanOptions options = thresholds(speed);
    options.thresholds.time_ratio = ratio;
    const Plan plan = program.plan(options);
    INFO(speed << " times as fast, ratio " << ratio << '\n' << to_string(plan));
    CHECK(on_accelerator(plan) == expected);
    for (const Placement& placement : plan.placements) {
      CHECK(placement.reason == (expected == 0 ? Reason::kThreshold : Reason::kFaster));
    }
  }
}

TEST_CASE("thresholds: the accelerator fills to its share of the memory, and the rest runs on the CPU") {
  for (const auto& [pressure, expected] : {std::pair{0.8, 8}, {0.5, 5}, {0.0, 0}}) {
    Program program;
    make_layers(program);
    PlanOptions options = thresholds(100);
    options.thresholds.pressure = pressure;
    // Room for the values between layers too.
    options.machine[1].bytes = kWeight * kLayers + (kWeight / 2);
    const Steady steady = plan_until_steady(program.graph, options);
    INFO("pressure " << pressure << '\n' << to_string(steady.plan));
    CHECK(on_accelerator(steady.plan) == expected);
    for (int i = 0; i < kLayers; ++i) {
      const Placement& placement = steady.plan.placements[static_cast<size_t>(i)];
      CHECK(placement.device == (i < expected ? kAccelerator : kCpu));
      CHECK(placement.reason == (i < expected ? Reason::kFaster : Reason::kNoMemory));
    }
    CHECK(steady.streamed_bytes == 0);
  }
}

TEST_CASE("thresholds: preferences hold, temporaries leave, and results are those of other placements") {
  Program program;
  BufferId x = program.input(kFloats);
  for (int i = 0; i < kLayers; ++i) {
    const Preference preference = i == 4 ? Preference::kCpu : Preference::kAuto;
    x = program.define(test_ops().pointwise, kFloats, {program.read(x)}, preference);
  }
  program.escape(x);
  PlanOptions options = thresholds(100);
  // The input, which stays, and three more.
  options.machine[1].bytes = 5 * kWeight;
  const Plan plan = program.plan(options);
  INFO(to_string(plan));
  CHECK(on_accelerator(plan) == kLayers - 1);
  CHECK(plan.placements[4].reason == Reason::kRequested);
  CHECK(same_values(program, program.run(options), program.interpret()));
}

TEST_CASE("thresholds: their reason is in the text of a plan, and parses back") {
  Program program;
  make_layers(program);
  const Plan plan = program.plan(thresholds(1.5));
  const Result<Plan> parsed = parse_plan(to_string(plan));
  REQUIRE(parsed.ok());
  CHECK(parsed.value().placements[0].reason == Reason::kThreshold);
}

}  // namespace
}  // namespace hetero::graph::testing
