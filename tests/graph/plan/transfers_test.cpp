// Transfers: small copies that can be one transfer are, and pay the link's latency once.

#include <algorithm>

#include "backend/sim/sim_device.h"
#include "graph/cost/simulate.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;
using Kind = Instruction::Kind;

constexpr double kLatency = 1e-3;
constexpr double kBandwidth = 1e9;
constexpr double kLaunch = 1e-6;
constexpr int64_t kSmall = 64;                // floats: nothing beside the latency
constexpr int64_t kLarge = int64_t{1} << 19;  // takes longer than the latency

// A machine whose link takes its time even for the smallest copy.
struct Machine {
  std::unique_ptr<backend::SimDevice> sim;
  Devices devices;
  PlanOptions options;

  explicit Machine(double latency = kLatency, uint64_t schedule_seed = 0) {
    sim = std::move(backend::SimDevice::create({.flops = 1e18,
                                                .memory_bandwidth = 1e15,
                                                .launch_latency = kLaunch,
                                                .h2d_bandwidth = kBandwidth,
                                                .d2h_bandwidth = kBandwidth,
                                                .copy_latency = latency,
                                                .schedule_seed = schedule_seed})
                        .value());
    devices = {test_devices()[kCpu], sim.get()};
    options = options_for(devices);
    options.policy = Policy::kAccelerator;
  }
};

PlanOptions apart(PlanOptions options) {
  options.join_copies = false;
  return options;
}

double predicted(const Program& program, const Plan& plan, const PlanOptions& options) {
  Simulation simulation;
  simulate(program.graph, plan, CostModel(options), simulation);
  return simulation.seconds;
}

// Each of the inputs is added by a task of its own.
void add_up(Program& p, int inputs, int64_t floats = kSmall) {
  BufferId sum = p.input(kSmall, 1u << kAccelerator);
  for (int i = 0; i < inputs; ++i) {
    sum = p.define(test_ops().pointwise, kSmall, {p.read(sum), p.read(p.input(floats))}, Preference::kAccelerator);
  }
  p.escape(sum);
}

// The CPU reads six results of the accelerator at once.
void gather(Program& p, uint8_t input_on) {
  const BufferId x = p.input(kSmall, input_on);
  p.escape(x);
  std::vector<Operand> parts;
  for (int i = 0; i < 6; ++i) {
    parts.push_back(p.read(p.define(test_ops().pointwise, kSmall, {p.read(x)}, Preference::kAccelerator)));
  }
  p.escape(p.define(test_ops().pointwise, kSmall, parts, Preference::kCpu));
}

// Per transfer of the program: how many copies.
std::vector<uint32_t> transfers(const Graph& graph, const Plan& plan) {
  std::vector<uint32_t> counts;
  for (uint32_t p = 0; p < plan.program.size(); ++p) {
    if (plan.program[p].kind != Kind::kCopy) continue;
    const uint32_t end = end_of_transfer(graph, plan, p);
    counts.push_back(end - p);
    p = end - 1;
  }
  return counts;
}

}  // namespace

TEST_CASE("transfers: thirty small inputs pay the link's latency once") {
  Machine machine;
  Program p;
  add_up(p, 30);
  const Plan plan = p.plan(machine.options);
  const Plan separate = p.plan(apart(machine.options));
  INFO(to_string(plan));
  REQUIRE(verify_plan(p.graph, plan, machine.options).ok());
  CHECK(transfers(p.graph, plan) == std::vector<uint32_t>{30});
  CHECK(transfers(p.graph, separate) == std::vector<uint32_t>(30, 1));

  RunTimes times;
  const Results results = p.run_plan(plan, machine.devices, &times);
  CHECK(same_values(p, results, p.interpret()));
  CHECK(results.counts.copies == 30);
  CHECK(results.counts.transfers == 1);
  CHECK(machine.sim->counters().copy_batches == 1);
  CHECK(results.counts.copied_bytes[kAccelerator] == 30 * kSmall * 4);

  RunTimes separate_times;
  const Results one_by_one = p.run_plan(separate, machine.devices, &separate_times);
  CHECK(same_values(p, one_by_one, p.interpret()));
  CHECK(one_by_one.counts.transfers == 30);
  CHECK(machine.sim->counters().copy_batches == 1);
  CHECK(separate_times.seconds - times.seconds == Approx(29 * kLatency).epsilon(1e-2));
  CHECK(predicted(p, plan, machine.options) == Approx(times.seconds).epsilon(1e-5));
  CHECK(predicted(p, separate, machine.options) == Approx(separate_times.seconds).epsilon(1e-5));
}

TEST_CASE("transfers: the spans of a transfer's copies are one") {
  Machine machine;
  Program p;
  add_up(p, 4);
  const Plan plan = p.plan(machine.options);
  RunTimes times;
  REQUIRE(p.run_plan(plan, machine.devices, &times).status.ok());
  Simulation simulation;
  simulate(p.graph, plan, CostModel(machine.options), simulation);
  const double seconds = kLatency + 4 * kSmall * 4 / kBandwidth;
  CHECK(simulation.busy[queue_id(kAccelerator, backend::QueueKind::kHostToDevice)] == Approx(seconds));
  double copying = 0;
  for (size_t i = 0; i < plan.program.size(); ++i) {
    if (plan.program[i].kind == Kind::kCopy) copying += times.spans[i].end - times.spans[i].begin;
    CHECK(simulation.spans[i].end == Approx(times.spans[i].end).epsilon(1e-5));
  }
  CHECK(copying == Approx(seconds));
}

TEST_CASE("transfers: results that the CPU waits for come back together") {
  Machine machine;
  Program p;
  gather(p, 1u << kAccelerator);
  const Plan plan = p.plan(machine.options);
  INFO(to_string(plan));
  REQUIRE(verify_plan(p.graph, plan, machine.options).ok());
  CHECK(transfers(p.graph, plan) == std::vector<uint32_t>{6});
  RunTimes times;
  CHECK(same_values(p, p.run_plan(plan, machine.devices, &times), p.interpret()));
  CHECK(times.seconds == Approx(kLatency).epsilon(0.05));
}

TEST_CASE("transfers: a copy that is ready does not wait for one that is not, where that takes longer") {
  Machine machine;
  Program p;
  // The second value is there long after the first one, and the CPU works on the first for as long.
  const BufferId first =
      p.define(test_ops().pointwise, kSmall, {p.read(p.input(kSmall, 1u << kAccelerator))}, Preference::kAccelerator);
  BufferId second = first;
  for (int i = 0; i < 3000; ++i) {
    second = p.define(test_ops().matmul, kSmall, {p.read(second)}, Preference::kAccelerator);
  }
  BufferId here = first;
  for (int i = 0; i < 3000; ++i) here = p.define(test_ops().matmul, kSmall, {p.read(here)}, Preference::kCpu);
  p.escape(p.define(test_ops().pointwise, kSmall, {p.read(here), p.read(second)}, Preference::kCpu));
  const Plan plan = p.plan(machine.options);
  CHECK(transfers(p.graph, plan) == std::vector<uint32_t>{1, 1});
}

TEST_CASE("transfers: as many bytes go together as the link moves in its latency, and what is larger goes alone") {
  Machine machine;
  CHECK(CostModel(machine.options).transfer_bytes(kAccelerator) == static_cast<uint64_t>(kLatency * kBandwidth));
  const auto most = static_cast<int64_t>(kLatency * kBandwidth) / 4;  // floats
  Program quarters;
  add_up(quarters, 8, most / 4);
  CHECK(transfers(quarters.graph, quarters.plan(machine.options)) == std::vector<uint32_t>{4, 4});
  Program large;
  add_up(large, 3, kLarge);
  const Plan plan = large.plan(machine.options);
  CHECK(transfers(large.graph, plan) == std::vector<uint32_t>(3, 1));
  CHECK(to_string(plan) == to_string(large.plan(apart(machine.options))));
  Machine without(0);
  Program small;
  add_up(small, 8);
  CHECK(to_string(small.plan(without.options)) == to_string(small.plan(apart(without.options))));
}

TEST_CASE("transfers: a plan's text keeps them") {
  Machine machine;
  Program p;
  add_up(p, 5);
  const Plan plan = p.plan(machine.options);
  const std::string text = to_string(plan);
  CHECK(text.find("transfers to accelerator: 1000000 bytes\n") != std::string::npos);
  Result<Plan> parsed = parse_plan(text);
  REQUIRE(parsed.ok());
  CHECK(to_string(parsed.value()) == text);
  CHECK(transfers(p.graph, parsed.value()) == std::vector<uint32_t>{5});
  CHECK(to_string(p.plan(apart(machine.options))).find("transfers") == std::string::npos);
}

TEST_CASE("transfers: programs that are known ahead of time have them too") {
  Machine machine;
  Program p;
  gather(p, 1u << kCpu);
  const auto executor = executor_of(model_of(save(p, {})), executor_options(machine.options, machine.devices));
  set_inputs(*executor, p);
  REQUIRE(executor->Run().ok());
  REQUIRE(executor->Wait().ok());
  CHECK(machine.sim->counters().copy_batches == 1);
  CHECK(machine.sim->counters().copies_out >= 6);
  CHECK(has_values(*executor, p.interpret()));
}

TEST_CASE("transfers: random programs have the same results, and never take longer than with copies apart") {
  std::mt19937 random(5);
  int64_t joined = 0;
  for (uint64_t round = 0; round < 150; ++round) {
    Machine machine(1e-5, round + 1);
    PlanOptions options = machine.options;
    options.policy = Policy::kMixed;
    Program p;
    make_random(p, random, 40, round % 2 == 0);
    const Plan plan = p.plan(options);
    INFO(to_string(p.graph));
    INFO(to_string(plan));
    REQUIRE(verify_plan(p.graph, plan, options).ok());
    RunTimes times;
    const Results results = p.run_plan(plan, machine.devices, &times);
    REQUIRE(same_values(p, results, p.interpret()));
    REQUIRE(predicted(p, plan, options) <= predicted(p, p.plan(apart(options)), options));
    joined += results.counts.copies - results.counts.transfers;
  }
  CHECK(joined > 150);
}

}  // namespace hetero::graph::testing
