// Programs on a CPU and three accelerators, of which neighbours have links and the outer two do not.

#include <algorithm>
#include <random>
#include <string>

#include "graph/cost/simulate.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using backend::DeviceIndex;
using backend::kCpu;
using backend::QueueKind;
using Kind = Instruction::Kind;

constexpr DeviceIndex kFirst = 1;
constexpr DeviceIndex kMiddle = 2;
constexpr DeviceIndex kLast = 3;

std::vector<Instruction> copies_of(const Plan& plan, BufferId buffer) {
  std::vector<Instruction> copies;
  std::ranges::copy_if(plan.program, std::back_inserter(copies), [&](const Instruction& instruction) {
    return instruction.kind == Kind::kCopy && instruction.index == buffer;
  });
  return copies;
}

// Makes a value on one accelerator and reads it on another.
struct Handover {
  Program program;
  BufferId made;

  Handover(DeviceIndex from, DeviceIndex to) {
    const BufferId x = program.input(64);
    made = program.define(test_ops().copy, 64, {program.read(x)}, prefer(from));
    program.escape(program.define(test_ops().copy, 64, {program.read(made)}, prefer(to)));
  }
};

void check_bits(Program& program, const Plan& plan, const Devices& devices) {
  INFO(to_string(program.graph));
  INFO(to_string(plan));
  const Results results = program.run_plan(plan, devices);
  REQUIRE(results.status.ok());
  REQUIRE(same_values(program, results, program.interpret()));
}

TEST_CASE("four devices: neighbours copy straight from each other") {
  Handover handover(kFirst, kMiddle);
  const Plan plan = handover.program.plan(options_for(four_devices()));
  const std::vector<Instruction> copies = copies_of(plan, handover.made);
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].from == kFirst);
  CHECK(copies[0].to == kMiddle);
  CHECK(copies[0].queue == queue_id(kMiddle, QueueKind::kFromPeer));
  const int64_t before = four_devices()[kMiddle]->counters().copies_from_peers;
  check_bits(handover.program, plan, four_devices());
  CHECK(four_devices()[kMiddle]->counters().copies_from_peers == before + 1);
}

TEST_CASE("four devices: those without a link copy by way of the host") {
  Handover handover(kFirst, kLast);
  const Plan plan = handover.program.plan(options_for(four_devices()));
  const std::vector<Instruction> copies = copies_of(plan, handover.made);
  REQUIRE(copies.size() == 2);
  CHECK(copies[0].from == kFirst);
  CHECK(copies[0].to == kCpu);
  CHECK(device_of(copies[0].queue) == kFirst);
  CHECK(copies[1].from == kCpu);
  CHECK(copies[1].to == kLast);
  CHECK(device_of(copies[1].queue) == kLast);
  check_bits(handover.program, plan, four_devices());
}

TEST_CASE("four devices: the verifier refuses a copy where there is no link, and on another link's queue") {
  Handover handover(kFirst, kMiddle);
  const PlanOptions options = options_for(four_devices());
  const Plan sound = handover.program.plan(options);
  const auto verdict = [&](auto change) {
    Plan plan = sound;
    for (Instruction& instruction : plan.program) {
      if (instruction.kind == Kind::kCopy && instruction.index == handover.made) change(instruction);
    }
    return verify_plan(handover.program.graph, plan, options).message();
  };
  CHECK(verdict([](Instruction& copy) { copy.from = kLast; }) != "");
  CHECK(verdict([](Instruction& copy) { copy.to = kLast; }).ends_with("copies where there is no link"));
  const QueueId others[] = {queue_id(kFirst, QueueKind::kFromPeer), queue_id(kMiddle, QueueKind::kHostToDevice)};
  for (const QueueId queue : others) {
    CHECK(verdict([&](Instruction& copy) { copy.queue = queue; }).ends_with("copies on the wrong queue"));
  }
}

TEST_CASE("four devices: a plan's text names all of them, and one that does not say is of two") {
  Handover handover(kMiddle, kLast);
  const Plan plan = handover.program.plan(options_for(four_devices()));
  const std::string text = to_string(plan);
  CHECK(text.find(" events, 4 devices") != std::string::npos);
  CHECK(text.find("accelerator:2 p2p: copy b") != std::string::npos);
  const Result<Plan> parsed = parse_plan(text);
  REQUIRE(parsed.ok());
  CHECK(parsed.value() == plan);
  const Result<Plan> unsaid = parse_plan("plan: 0 nodes, 1 buffers, 0 events\nb0: unused\n");
  REQUIRE(unsaid.ok());
  CHECK(unsaid.value().device_count == 2);
  CHECK_FALSE(parse_plan("plan: 0 nodes, 0 buffers, 0 events, 9 devices\n").ok());
}

TEST_CASE("four devices: random programs give the interpreter's bits, within each memory or without a bound") {
  const bool bounded = GENERATE(false, true);
  const bool fused = GENERATE(false, true);
  std::mt19937 random(11);
  int64_t kernels[4] = {};
  int64_t peer_copies = 0;
  int64_t returns = 0;
  for (int round = 0; round < 60; ++round) {
    Program program;
    fused ? make_fusable(program, random, 30) : make_random(program, random, 30, true);
    spread(program, random, 4);
    PlanOptions options = options_for(four_devices());
    options.fusion = fused;
    options.policy = round % 2 == 0 ? Policy::kMixed : Policy::kAuto;
    for (DeviceIndex d = 1; bounded && d < 4; ++d) options.machine[d].bytes = 640 + 32 * static_cast<uint64_t>(round);
    const Plan plan = program.plan(options);
    check_bits(program, plan, four_devices());
    for (const Instruction& instruction : plan.program) {
      const bool copies = instruction.kind == Kind::kCopy;
      peer_copies += copies && instruction.from != kCpu && instruction.to != kCpu;
      if (!copies) ++kernels[device_of(instruction.queue)];
    }
    returns += static_cast<int64_t>(plan.returns.size());
  }
  for (const int64_t count : kernels) CHECK(count > 100);
  CHECK(peer_copies > 50);
  CHECK((returns > 0) == bounded);
}

TEST_CASE("four devices: what simulate() predicts is what the virtual clock shows") {
  std::mt19937 random(12);
  int spread_runs = 0;
  for (int round = 0; round < 40; ++round) {
    const auto accelerators = make_simulated({.flops = 1e9,
                                              .memory_bandwidth = 1e9,
                                              .launch_latency = 1e-6,
                                              .h2d_bandwidth = 1e8,
                                              .d2h_bandwidth = 5e7,
                                              .copy_latency = 1e-5,
                                              .links = {{0, 1, {.bandwidth = 3e8, .latency = 1e-6}},
                                                        {1, 0, {.bandwidth = 2e8, .latency = 2e-6}},
                                                        {1, 2, {.bandwidth = 4e8, .latency = 3e-6}}}},
                                             3);
    const Devices devices = with_cpu(accelerators);
    Program program;
    make_random(program, random, 40, true);
    spread(program, random, 4);
    const PlanOptions options = options_for(devices);
    const Plan plan = program.plan(options);
    if (uses_host_only(plan)) continue;
    RunTimes times;
    const Results results = program.run_plan(plan, devices, &times);
    REQUIRE(results.status.ok());
    Simulation simulation;
    simulate(program.graph, plan, CostModel(options), simulation);
    INFO(to_string(program.graph));
    INFO(to_string(plan));
    REQUIRE(times.seconds == Approx(simulation.seconds).epsilon(1e-4));
    for (size_t p = 0; p < plan.program.size(); ++p) {
      const Kind kind = plan.program[p].kind;
      if (kind == Kind::kRecord || kind == Kind::kWait) continue;
      INFO("p" << p);
      REQUIRE(times.spans[p].end == Approx(simulation.spans[p].end).epsilon(1e-4).margin(1e-9));
    }
    ++spread_runs;
  }
  CHECK(spread_runs > 30);
}

}  // namespace
}  // namespace hetero::graph::testing
