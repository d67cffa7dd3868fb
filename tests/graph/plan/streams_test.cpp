// Streams: tasks of the accelerator that do not depend on each other run beside each other, where that takes less time.

#include <algorithm>
#include <optional>
#include <string>

#include "backend/sim/sim_device.h"
#include "graph/cost/history.h"
#include "graph/cost/simulate.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kComputeQueues;
using backend::kCpu;
using Kind = Instruction::Kind;

constexpr double kLaunch = 1e-3;
constexpr int64_t kSmall = 64;  // floats: nothing beside a launch

// A machine on which a task takes its launch and the time of its bytes. The program's inputs lie there.
struct Machine {
  std::unique_ptr<backend::SimDevice> sim;
  Devices devices;
  PlanOptions options;

  explicit Machine(double memory_bandwidth = 1e12, uint64_t schedule_seed = 0) {
    sim = std::move(backend::SimDevice::create({.flops = 1e18,
                                                .memory_bandwidth = memory_bandwidth,
                                                .launch_latency = kLaunch,
                                                .schedule_seed = schedule_seed})
                        .value());
    devices = {test_devices()[kCpu], sim.get()};
    options = options_for(devices);
    options.policy = Policy::kAccelerator;
  }
};

// Branches of such lengths from one input, joined at the end.
struct Branches {
  Program program;
  explicit Branches(const std::vector<int>& lengths, int64_t floats = kSmall) {
    const BufferId x = program.input(floats, 1u << kAccelerator);
    program.escape(x);
    std::vector<BufferId> ends;
    for (const int length : lengths) {
      BufferId value = x;
      for (int i = 0; i < length; ++i) value = next(floats, {value});
      ends.push_back(value);
    }
    program.escape(next(floats, ends));
  }
  BufferId next(int64_t floats, const std::vector<BufferId>& from) {
    std::vector<Operand> operands;
    for (const BufferId b : from) operands.push_back(program.read(b));
    return program.define(test_ops().pointwise, floats, operands);
  }
};

double predicted(const Program& program, const Plan& plan, const PlanOptions& options) {
  Simulation simulation;
  simulate(program.graph, plan, CostModel(options), simulation);
  return simulation.seconds;
}

int64_t count(const Plan& plan, Kind kind) { return std::ranges::count(plan.program, kind, &Instruction::kind); }

int used_compute_queues(const Plan& plan) {
  int used = 0;
  for (int n = 0; n < kComputeQueues; ++n) {
    const QueueId queue = queue_id(kAccelerator, backend::compute_queue(n));
    used += std::ranges::any_of(plan.program, [queue](const Instruction& i) { return i.queue == queue; });
  }
  return used;
}

PlanOptions with_queues(PlanOptions options, int queues) {
  options.compute_queues = queues;
  return options;
}

}  // namespace

TEST_CASE("streams: the branches of an Inception block take as long as the longest one") {
  Machine machine;
  // 1x1; 1x1, 3x3; 1x1, 3x3, 3x3; pool, 1x1; and the concatenation.
  Branches block({1, 2, 3, 2});
  const Plan plan = block.program.plan(machine.options);
  INFO(to_string(plan));
  REQUIRE(verify_plan(block.program.graph, plan, machine.options).ok());
  CHECK(used_compute_queues(plan) == 4);
  RunTimes times;
  const Results results = block.program.run_plan(plan, machine.devices, &times);
  CHECK(same_values(block.program, results, block.program.interpret()));
  // By the virtual clock: 4 launches deep, of 9.
  CHECK(times.seconds == Approx(4 * kLaunch).epsilon(1e-3));
  CHECK(predicted(block.program, plan, machine.options) == Approx(times.seconds).epsilon(1e-5));
  const Plan serial = block.program.plan(with_queues(machine.options, 1));
  CHECK(used_compute_queues(serial) == 1);
  CHECK(predicted(block.program, serial, machine.options) == Approx(9 * kLaunch).epsilon(1e-3));
  // The join waits once for each other queue, and nothing else waits.
  CHECK(count(plan, Kind::kWait) == 3);
  CHECK(count(plan, Kind::kRecord) == 3);
}

TEST_CASE("streams: towers take what the queues allow") {
  Machine machine;
  Branches towers(std::vector<int>(8, 4));
  for (const int queues : {1, 2, 3, 4}) {
    const PlanOptions options = with_queues(machine.options, queues);
    const Plan plan = towers.program.plan(options);
    CHECK(used_compute_queues(plan) == queues);
    RunTimes times;
    CHECK(same_values(towers.program, towers.program.run_plan(plan, machine.devices, &times),
                      towers.program.interpret()));
    // Eight towers of four launches, in rounds, and the join.
    const int rounds = (8 + queues - 1) / queues;
    CHECK(times.seconds <= Approx((4 * rounds + 1) * kLaunch).epsilon(1e-2));
    CHECK(times.seconds >= Approx((32.0 / queues + 1) * kLaunch).epsilon(1e-3));
  }
}

TEST_CASE("streams: an event is awaited once, however many inputs it stands for") {
  Machine machine;
  Program p;
  const BufferId x = p.input(kSmall, 1u << kAccelerator);
  p.escape(x);
  const auto make = [&](std::vector<Operand> operands) { return p.define(test_ops().pointwise, kSmall, operands); };
  const BufferId a = make({p.read(x)});
  const BufferId b = make({p.read(a)});
  const BufferId left = make({p.read(a), p.read(b)});
  const BufferId right = make({p.read(a), p.read(b), p.read(x)});
  p.escape(make({p.read(left), p.read(right), p.read(a)}));
  const Plan plan = p.plan(machine.options);
  INFO(to_string(plan));
  CHECK(used_compute_queues(plan) == 2);
  CHECK(count(plan, Kind::kWait) == 2);
}

TEST_CASE("streams: where nothing is independent, or each task fills the accelerator, plans are those of one queue") {
  const auto same = [](const Program& program, const PlanOptions& options) {
    return to_string(program.plan(options)) == to_string(program.plan(with_queues(options, 1)));
  };
  Machine machine;
  CHECK(same(Branches({12}).program, machine.options));
  // A task's bytes take a hundred times as long as its launch.
  constexpr int64_t kLarge = 1 << 14;
  Machine slow(2 * 4 * kLarge / (100 * kLaunch));
  CHECK(same(Branches({3, 3, 3, 3}, kLarge).program, slow.options));
  CHECK_FALSE(same(Branches({3, 3, 3, 3}).program, machine.options));
  PlanOptions on_cpu = machine.options;
  on_cpu.policy = Policy::kCpu;
  CHECK(same(Branches({3, 3, 3, 3}).program, on_cpu));
}

TEST_CASE("streams: tasks that were measured to be slow but fill a part of the accelerator run beside each other") {
  Machine machine;
  Branches pair({1, 1});
  CostHistory history;
  machine.options.history = &history;
  const auto measure = [&](double seconds) {
    for (const Node& node : pair.program.graph.nodes) {
      for (uint32_t i = 0; i < CostHistory::kEnough; ++i) {
        history.add(cost_key(pair.program.graph, node, kAccelerator), seconds);
      }
    }
  };
  measure(5 * kLaunch);
  const auto seconds = [&](double parallelism) {
    machine.options.machine[1].rates.parallelism = parallelism;
    return predicted(pair.program, pair.program.plan(machine.options), machine.options);
  };
  // Each keeps half of it busy for four of five parts of its time.
  CHECK(seconds(2.0 * kSmall) == Approx(10 * kLaunch));
  // All of it: the other has a fifth for 5 launches, and 3 of its 4 are left for 3.75 more. Then comes the join.
  CHECK(seconds(kSmall) == Approx(13.75 * kLaunch));
}

TEST_CASE("streams: how much kernels are in each other's way is learned from when they ran") {
  Machine machine;
  Branches four({1, 1, 1, 1});
  const Graph& graph = four.program.graph;
  machine.options.machine[1].rates.parallelism = 2 * kSmall;
  // What each takes alone, and the factor where it is not 0.
  const auto fill = [&](CostHistory& history, double slowness) {
    for (uint32_t i = 0; i < CostHistory::kEnough; ++i) {
      for (const Node& node : graph.nodes) history.add(cost_key(graph, node, kAccelerator), 5 * kLaunch);
      if (slowness > 0) history.add(CostModel::slowness_key(), slowness);
    }
  };
  CostHistory known;
  fill(known, 0);
  machine.options.history = &known;
  const Plan plan = four.program.plan(machine.options);
  REQUIRE(used_compute_queues(plan) > 1);
  const CostModel costs(machine.options);
  for (const double factor : {0.25, 0.5, 0.9, 1.0, 1.5, 2.0, 2.4}) {
    CostHistory other;
    fill(other, factor);
    machine.options.history = &other;
    const CostModel reality(machine.options);
    Simulation seen;
    simulate(graph, plan, reality, seen);
    const std::optional<double> fitted = fit_slowness(graph, plan, costs, seen.spans);
    REQUIRE(fitted.has_value());
    CostHistory learned;
    fill(learned, *fitted);
    machine.options.history = &learned;
    CHECK(predicted(four.program, plan, machine.options) == Approx(seen.seconds).epsilon(0.03));
    if (factor == 1.0) CHECK(*fitted == 1.0);
  }
  // No factor makes a kernel faster than it is alone.
  Simulation impossible;
  simulate(graph, plan, costs, impossible);
  for (Span& span : impossible.spans) span.end = span.begin + (span.end - span.begin) / 4;
  CHECK_FALSE(fit_slowness(graph, plan, costs, impossible.spans).has_value());
}

TEST_CASE("streams: tasks of other sizes keep another share of the accelerator busy") {
  Machine machine;
  machine.options.machine[1].rates.parallelism = 16 * kSmall;
  Branches small({1, 1, 1, 1});
  // Graphs that are compared have one table of windows.
  Graph now = small.program.graph;
  const std::vector<int64_t> sizes = {8 * kSmall};
  for (Operand& operand : now.operands) {
    const Window& window = small.program.windows[operand.window];
    operand.window = small.program.windows.intern_contiguous(window.dtype, sizes);
    now.buffers[operand.buffer].bytes = static_cast<uint64_t>(4 * sizes[0]);
  }
  CostHistory history;
  for (uint32_t i = 0; i < CostHistory::kEnough; ++i) {
    for (const Node& node : now.nodes) history.add(cost_key(now, node, kAccelerator), 5 * kLaunch);
  }
  machine.options.history = &history;
  const Plan plan = small.program.plan(machine.options);
  REQUIRE(used_compute_queues(plan) == 4);
  Plan resized = plan;
  REQUIRE(resize_plan(small.program.graph, now, machine.options, resized));
  REQUIRE(verify_plan(now, resized, machine.options).ok());
  for (uint32_t n = 0; n < now.nodes.size(); ++n) {
    // Half of it for four of five parts of the time.
    CHECK(resized.placements[n].utilization == Approx(0.4));
    CHECK(resized.placements[n].utilization > plan.placements[n].utilization);
  }
}

TEST_CASE("streams: a plan's text says which queues run what, and parses back") {
  Machine machine;
  Branches block({1, 2, 3, 2});
  const Plan plan = block.program.plan(machine.options);
  const std::string text = to_string(plan);
  CHECK(text.find("accelerator compute 4: run n") != std::string::npos);
  CHECK(text.find(", fills ") != std::string::npos);
  Result<Plan> parsed = parse_plan(text);
  REQUIRE(parsed.ok());
  parsed.value().notes = plan.notes;
  CHECK(parsed.value() == plan);
  // The CPU has one queue in programs.
  std::string wrong = text;
  wrong.replace(wrong.find("accelerator compute 4"), std::string("accelerator compute 4").size(), "cpu compute 4");
  CHECK_FALSE(parse_plan(wrong).ok());
}

TEST_CASE("streams: memory that is too small for all at once makes tasks wait, or leaves them on one queue") {
  Machine machine;
  constexpr int64_t kFloats = 1024;
  Branches towers(std::vector<int>(8, 4), kFloats);
  const auto held = [&](const Plan& plan) {
    uint64_t bytes = plan.arena_bytes[kAccelerator];
    for (BufferId b = 0; b < towers.program.graph.buffers.size(); ++b) {
      if (plan.residence(b, kAccelerator).home == Home::kBound) bytes += towers.program.graph.buffers[b].bytes;
    }
    return bytes;
  };
  const PlanOptions one = with_queues(machine.options, 1);
  const uint64_t least = held(towers.program.plan(one));
  const uint64_t most = held(towers.program.plan(machine.options));
  CHECK(most > least);
  double before = predicted(towers.program, towers.program.plan(one), one);
  const double serial = before;
  for (uint64_t bytes = least; bytes <= most; bytes += (most - least) / 4) {
    PlanOptions options = machine.options;
    options.machine[1].bytes = bytes;
    const Plan plan = towers.program.plan(options);
    REQUIRE(verify_plan(towers.program.graph, plan, options).ok());
    CHECK(held(plan) <= bytes);
    CHECK(count(plan, Kind::kCopy) == 0);
    const double seconds = predicted(towers.program, plan, options);
    CHECK(seconds <= before * (1 + 1e-9));
    before = seconds;
    CHECK(same_values(towers.program, towers.program.run_plan(plan, machine.devices), towers.program.interpret()));
  }
  CHECK(before < serial / 3);
}

TEST_CASE("streams: random programs keep their bits, and take no longer than on one queue") {
  std::mt19937 random(17);
  int spread = 0;
  for (int round = 0; round < 200; ++round) {
    Machine machine(1e12, 1 + static_cast<uint64_t>(round));
    Program program;
    make_random(program, random, 10 + round % 50, true);
    PlanOptions options = machine.options;
    options.policy = round % 2 == 0 ? Policy::kAccelerator : Policy::kMixed;
    const Plan plan = program.plan(options);
    INFO(to_string(program.graph));
    INFO(to_string(plan));
    REQUIRE(verify_plan(program.graph, plan, options).ok());
    spread += used_compute_queues(plan) > 1;
    const PlanOptions one = with_queues(options, 1);
    REQUIRE(predicted(program, plan, options) <= predicted(program, program.plan(one), one) * (1 + 1e-9));
    REQUIRE(same_values(program, program.run_plan(plan, machine.devices), program.interpret()));
  }
  CHECK(spread > 50);
}

}  // namespace hetero::graph::testing
