// Placement: the rollout is what the program will do, the search comes near the best of all placements, and bytes that do not fit come and go.

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "backend/fault/fault_device.h"
#include "backend/sim/sim_device.h"
#include "graph/cost/simulate.h"
#include "graph/placement/min_cut.h"
#include "graph/plan/passes.h"
#include "graph/verify/verify.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/fixtures/steady.h"
#include "tests/graph/placement/placement_cases.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;

// A chain of products, each with a weight of its own of `bytes[i]`.
struct Layers {
  Program program;
  std::vector<BufferId> weights;
  explicit Layers(const std::vector<int64_t>& floats) {
    BufferId x = program.input(64);
    for (const int64_t count : floats) {
      weights.push_back(program.input(count));
      program.graph.buffers.back().escapes = true;
      program.graph.buffers.back().steady = true;
      x = program.define(test_ops().matmul, 64, {program.read(x), program.read(weights.back())});
    }
    program.escape(x);
  }
};

std::unique_ptr<backend::SimDevice> timed_device() {
  auto sim = backend::SimDevice::create({.d2h_bandwidth = 10e9, .copy_latency = 2e-6, .schedule_seed = 1});
  REQUIRE(sim.ok());
  return std::move(sim.value());
}

// Bytes that nobody has written are not copied.
bool copied_all(const Plan& plan, const Results& results) {
  return results.counts.copies == std::ranges::count(plan.program, Instruction::Kind::kCopy, &Instruction::kind);
}

// What the program updates begins where the plan leaves it. False where it was there before, and there only: that others have read it since, elsewhere, is
// more than a rollout knows.
bool begin_as_it_ends(Graph& graph, const Plan& plan) {
  bool moved = false;
  for (const Node& node : graph.nodes) {
    for (const Operand *o = graph.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
      Buffer& buffer = graph.buffers[o->buffer];
      if (!o->writes() || buffer.valid_on == 0 || !buffer.escapes) continue;
      moved |= buffer.valid_on != plan.valid_after[o->buffer] || std::popcount(buffer.valid_on) != 1;
      buffer.valid_on = plan.valid_after[o->buffer];
    }
  }
  return moved;
}

bool is_event(const Instruction& instruction) {
  return instruction.kind == Instruction::Kind::kWait || instruction.kind == Instruction::Kind::kRecord;
}

// A simulated accelerator of which only its events tell the time, as of a GPU.
class WithoutClock final : public backend::FaultDevice {
 public:
  using FaultDevice::FaultDevice;
  bool has_virtual_clock() const override { return false; }
};

}  // namespace

TEST_CASE("placement: a rollout takes as long as the program that the passes make of it") {
  std::mt19937 random(31);
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    Program program;
    make_random(program, random, 10 + round % 50, true);
    PlanOptions options = round % 3 == 0 ? both_options() : mixed_options();
    options.machine[1].rates.copy_latency = 1e-6;
    options.compute_queues = 1;
    options.join_copies = false;
    std::vector<Candidate> candidates;
    options.candidates = &candidates;
    Plan plan = program.plan(options);
    bool moved = begin_as_it_ends(program.graph, plan);
    for (int again = 0; moved && again < 3; ++again) {
      candidates.clear();
      plan = program.plan(options);
      moved = begin_as_it_ends(program.graph, plan);
    }
    if (moved || uses_host_only(plan)) continue;
    ++compared;
    const auto chosen = std::ranges::find_if(candidates, &Candidate::chosen);
    REQUIRE(chosen != candidates.end());
    Simulation simulation;
    simulate(program.graph, plan, CostModel(options), simulation);
    INFO(to_string(program.graph));
    INFO(to_string(plan));
    REQUIRE(simulation.seconds == Approx(chosen->seconds).epsilon(1e-9));
  }
  CHECK(compared > 100);
}

TEST_CASE("placement: with more effort, large programs come out faster") {
  std::mt19937 random(35);
  double seconds[2] = {};
  for (int round = 0; round < 20; ++round) {
    Program program;
    make_random(program, random, 150, true);
    for (const int effort : {1, 8}) {
      PlanOptions options = both_options();
      options.machine[1].rates.copy_latency = 1e-6;
      options.effort = effort;
      std::vector<Candidate> candidates;
      options.candidates = &candidates;
      (void)program.plan(options);
      seconds[effort > 1] += std::ranges::find_if(candidates, &Candidate::chosen)->seconds;
    }
  }
  INFO(seconds[0] << " s with the usual effort, " << seconds[1] << " s with more");
  CHECK(seconds[1] < seconds[0]);
}

TEST_CASE("placement: a candidate's name says where its tasks are") {
  int named[3] = {};
  std::mt19937 random(37);
  for (int round = 0; round < 200; ++round) {
    Program program;
    make_random(program, random, 1 + round % 12, round % 2 == 0);
    constexpr Policy kPolicies[] = {Policy::kAuto, Policy::kCpu, Policy::kAccelerator, Policy::kMixed};
    PlanOptions options = both_options();
    options.policy = kPolicies[round % 4];
    // Some of them hold nothing, so that what was asked for there runs on the CPU.
    if (round % 3 != 0) options.machine[1].bytes = 1 + 256 * (static_cast<uint64_t>(round) % 8);
    std::vector<Candidate> candidates;
    options.candidates = &candidates;
    const Plan plan = program.plan(options);
    const auto chosen = std::ranges::find_if(candidates, &Candidate::chosen);
    REQUIRE(chosen != candidates.end());
    bool on[backend::kMostDevices] = {};
    for (size_t n = 0; n < plan.placements.size(); ++n) {
      if (plan.live[n]) on[plan.placements[n].device] = true;
    }
    const std::string name = chosen->name;
    INFO(name << to_string(program.graph) << to_string(plan));
    if (name.starts_with("all on the CPU")) REQUIRE_FALSE(on[kAccelerator]);
    if (name == "all on the accelerator") REQUIRE_FALSE(on[kCpu]);
    if (name == "each on the only device that it may run on") REQUIRE((on[kCpu] && on[kAccelerator]));
    const bool only_there = on[kAccelerator] && !on[kCpu];
    if (options.policy == Policy::kAccelerator && only_there) REQUIRE(name == "all on the accelerator");
    if (options.policy == Policy::kCpu && !on[kAccelerator]) REQUIRE(name.starts_with("all on the CPU"));
    named[0] += name == "all on the accelerator";
    named[1] += name == "each on the only device that it may run on";
    named[2] += name == "all on the CPU, for lack of memory";
  }
  CHECK(named[0] > 10);
  CHECK(named[1] > 10);
  CHECK(named[2] > 0);
}

TEST_CASE("placement: instead of one that is doubted, another one is taken") {
  std::mt19937 random(36);
  int on_both = 0;
  for (int round = 0; round < 60; ++round) {
    Program program;
    make_random(program, random, 10 + round % 40, true);
    PlanOptions options = both_options();
    options.machine[1].rates.copy_latency = 1e-6;
    options.compute_queues = 1 + round % 2;
    options.machine[1].bytes = round % 3 == 2 ? 4096 : 0;
    const Plan doubted = program.plan(options);
    std::vector<backend::DeviceIndex> devices;
    for (const Placement& placement : doubted.placements) devices.push_back(placement.device);
    options.instead_of = &devices;
    std::vector<Candidate> candidates;
    options.candidates = &candidates;
    const Plan other = program.plan(options);
    INFO(to_string(program.graph) << to_string(doubted) << to_string(other));
    REQUIRE(verify_plan(program.graph, other, options).ok());
    CHECK(std::ranges::count_if(candidates, &Candidate::chosen) == 1);
    double all = 0;
    double moved = 0;
    bool both = false;
    for (size_t n = 0; n < devices.size(); ++n) {
      const Reason why = doubted.placements[n].reason;
      if (!doubted.live[n] || (why != Reason::kFaster && why != Reason::kSavesTime)) continue;
      const auto seconds = static_cast<double>(doubted.placements[n].predicted_seconds);
      all += seconds;
      const bool stays = other.placements[n].device == devices[n];
      if (!stays) moved += seconds;
      both |= stays;
    }
    // There may be no other within the memory.
    if (options.machine[1].bytes == 0 || other.placements != doubted.placements) CHECK(moved >= 0.24 * all);
    on_both += both && moved > 0;
    // What is of another graph says nothing.
    devices.pop_back();
    CHECK(program.plan(options) == doubted);
  }
  CHECK(on_both > 10);
}

TEST_CASE("placement: with more memory the accelerator does not get nothing") {
  std::mt19937 random(37);
  int bounded = 0;
  for (int round = 0; round < 30; ++round) {
    Program program;
    make_random(program, random, 20 + round, true);
    int64_t before = 0;
    for (uint64_t bytes = 1024; bytes <= 32768; bytes += bytes / 4) {
      PlanOptions options = remote_options();
      options.machine[1].bytes = bytes;
      const Plan plan = program.plan(options);
      int64_t there = 0;
      for (size_t n = 0; n < plan.live.size(); ++n) there += plan.live[n] && plan.placements[n].device == kAccelerator;
      INFO(bytes << " bytes: " << there << " nodes, and " << before << " with less");
      CHECK((there > 0 || before == 0));
      bounded += there > 0 && there < static_cast<int64_t>(plan.live.size() - plan.dead_nodes);
      before = there;
    }
  }
  CHECK(bounded > 30);
}

TEST_CASE("placement: a program takes on the simulated accelerator what was predicted") {
  std::mt19937 random(32);
  int compared = 0;
  for (int round = 0; round < 100; ++round) {
    const auto sim = timed_device();
    const Devices devices{test_devices()[kCpu], sim.get()};
    Program program;
    make_random(program, random, 10 + round % 50, true);
    PlanOptions options = options_for(devices);
    options.policy = Policy::kMixed;
    if (round % 2 == 1) options.machine[1].bytes = 4096 + 256 * static_cast<uint64_t>(round);
    const Plan plan = program.plan(options);
    if (uses_host_only(plan)) continue;
    Simulation simulation;
    simulate(program.graph, plan, CostModel(options), simulation);
    RunTimes times;
    const Results results = program.run_plan(plan, devices, &times);
    if (!copied_all(plan, results)) continue;
    ++compared;
    INFO(to_string(plan));
    REQUIRE(times.seconds == Approx(simulation.seconds).epsilon(1e-5));
    for (size_t p = 0; p < plan.program.size(); ++p) {
      if (is_event(plan.program[p])) continue;
      INFO("p" << p);
      REQUIRE(times.spans[p].begin == Approx(simulation.spans[p].begin).epsilon(1e-5).margin(1e-12));
      REQUIRE(times.spans[p].end == Approx(simulation.spans[p].end).epsilon(1e-5).margin(1e-12));
    }
  }
  CHECK(compared > 50);
}

TEST_CASE("placement: what an accelerator without a virtual clock takes is measured by its events") {
  std::mt19937 random(33);
  int timed = 0;
  for (int round = 0; round < 20; ++round) {
    const auto sim = timed_device();
    WithoutClock accelerator(*sim);
    const Devices devices{test_devices()[kCpu], &accelerator};
    Program program;
    make_random(program, random, 10 + round, true);
    PlanOptions options = options_for(devices);
    options.policy = Policy::kMixed;
    options.join_copies = false;
    const Plan plan = program.plan(options);
    if (uses_host_only(plan)) continue;
    Simulation simulation;
    simulate(program.graph, plan, CostModel(options), simulation);
    RunTimes times;
    const Results results = program.run_plan(plan, devices, &times);
    if (!copied_all(plan, results)) continue;
    std::array<double, kMaxQueues> ends{};
    for (size_t p = 0; p < plan.program.size(); ++p) {
      const Instruction& it = plan.program[p];
      if (is_event(it) || it.queue == kHostQueue || backend::is_side_compute(kind_of(it.queue))) continue;
      INFO("p" << p << '\n' << to_string(plan));
      const double predicted = simulation.spans[p].end - simulation.spans[p].begin;
      double& before = ends[it.queue];
      REQUIRE(times.spans[p].begin >= before * (1 - 1e-9) - 1e-12);
      before = times.spans[p].end;
      REQUIRE(times.spans[p].end - times.spans[p].begin == Approx(predicted).epsilon(1e-5).margin(1e-12));
      ++timed;
    }
  }
  CHECK(timed > 50);
}

TEST_CASE("placement: the search comes near the best of all placements") {
  double sum = 0;
  double worst = 0;
  int graphs = 0;
  for (const Shape shape : kShapes) {
    double shape_sum = 0;
    double shape_worst = 0;
    for (const double ratio : kCopyRatios) {
      for (unsigned seed = 0; seed < kGraphsOfEach; ++seed) {
        std::mt19937 random(seed);
        Tasks tasks = make_tasks(shape, ratio, random);
        const double got = search_seconds(tasks.graph);
        const double least = best_of_all(tasks.graph);
        REQUIRE(got >= least * (1 - 1e-9));
        shape_sum += got / least;
        shape_worst = std::max(shape_worst, got / least);
        ++graphs;
      }
    }
    std::printf("placement over the best of all, %s: mean %.4f, worst %.4f\n", to_string(shape), shape_sum / 75,
                shape_worst);
    sum += shape_sum;
    worst = std::max(worst, shape_worst);
  }
  CHECK(graphs == 225);
  CHECK(sum / graphs <= 1.01);
  CHECK(worst <= 1.12);
}

TEST_CASE("placement: the minimum cut is the best placement of a chain") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    Tasks tasks = make_tasks(Shape::kChain, 0.5, random);
    REQUIRE(seconds_of(tasks.graph, min_cut(tasks.graph)) == Approx(best_of_all(tasks.graph)).epsilon(1e-6));
  }
}

TEST_CASE("placement: weights that do not fit are streamed beside the work") {
  // 64 layers; a copy takes as long as four layers' work, or a quarter of one's.
  for (const bool uneven : {false, true}) {
    for (const double copies : {4.0, 0.25}) {
      for (const int streamed : {25, 50, 75, 100}) {
        std::mt19937 random(7);
        std::vector<int64_t> floats(64, 1 << 16);
        for (int64_t& count : floats) {
          if (uneven) count = (1 << 15) + static_cast<int64_t>(random() % (1 << 16));
        }
        Layers layers(floats);
        double bytes = 0;
        for (const int64_t count : floats) bytes += static_cast<double>(count) * 4;
        PlanOptions options = both_options();
        options.policy = Policy::kAccelerator;
        // A layer's work takes as long as its bytes do at 1e9 a second.
        options.machine[1].rates = {
            .flops = 1e30, .memory_bandwidth = 1e9, .copy_bandwidth = 1e9 / copies, .launch_latency = 1e-9};
        const double largest = 4 * static_cast<double>(*std::ranges::max_element(floats));
        // What stays, three slots, and what an arena wastes.
        options.machine[1].bytes =
            static_cast<uint64_t>((bytes * (100 - streamed) / 100 + 3 * largest + 4096) * 16 / 15);
        const Steady steady = plan_until_steady(layers.program.graph, options);
        const Simulation& simulation = steady.simulation;
        const double moved = static_cast<double>(steady.streamed_bytes);
        const double least =
            std::max(simulation.busy[queue_id(kAccelerator, backend::QueueKind::kCompute)], moved * copies / 1e9);
        std::printf("streaming %s layers, %3d %% asked, %3.0f %% streamed, copies %.2f x work: %.4f of the least\n",
                    uneven ? "uneven" : "equal", streamed, 100 * moved / bytes, copies, simulation.seconds / least);
        // Work does not wait for what was moved needlessly.
        CHECK(moved <= bytes * streamed / 100 + 2 * largest);
        CHECK(simulation.seconds <= (uneven ? 1.05 : 1.02) * least);
      }
    }
  }
}

TEST_CASE("placement: what is streamed is evenly spaced, and copies wait for the memory of what was used") {
  constexpr int kLayers = 64;
  constexpr int64_t kFloats = 1 << 12;
  constexpr uint64_t kBytes = sizeof(float) * kFloats;
  constexpr uint64_t kSlots = 3;
  for (const uint64_t streamed : {25, 50, 75, 100}) {
    Layers layers(std::vector<int64_t>(kLayers, kFloats));
    PlanOptions options = both_options();
    options.policy = Policy::kAccelerator;
    // The copies would be done in half of the time that the layers take.
    options.machine[1].rates = {.flops = 1e30, .memory_bandwidth = 1e9, .copy_bandwidth = 2e9, .launch_latency = 1e-9};
    options.machine[1].bytes = (kBytes * kLayers * (100 - streamed) / 100 + kSlots * kBytes + 4096) * 16 / 15;
    const Steady steady = plan_until_steady(layers.program.graph, options);
    std::vector<size_t> gone;  // layers whose weight is streamed
    uint64_t resident_bytes = 0;
    for (size_t i = 0; i < layers.weights.size(); ++i) {
      const bool there = layers.program.graph.buffers[layers.weights[i]].valid_on >> kAccelerator & 1;
      if (there) {
        resident_bytes += kBytes;
      } else {
        gone.push_back(i);
      }
    }
    REQUIRE(gone.size() == kLayers * streamed / 100);
    std::vector<size_t> gaps;
    for (size_t i = 1; i < gone.size(); ++i) gaps.push_back(gone[i] - gone[i - 1]);
    CHECK(std::ranges::max(gaps) - std::ranges::min(gaps) <= 1);
    // The bytes that are on their way or were not used yet, whenever that changes.
    std::vector<std::pair<double, int64_t>> changes;
    for (size_t p = 0; p < steady.plan.program.size(); ++p) {
      const Instruction& it = steady.plan.program[p];
      const Span& span = steady.simulation.spans[p];
      if (it.kind == Instruction::Kind::kRun && std::ranges::binary_search(gone, it.index)) {
        changes.emplace_back(span.end, -static_cast<int64_t>(kBytes));
      } else if (it.kind == Instruction::Kind::kCopy &&
                 std::ranges::find(layers.weights, it.index) != layers.weights.end()) {
        changes.emplace_back(span.begin, kBytes);
      }
    }
    CHECK(changes.size() == 2 * gone.size());
    std::ranges::sort(changes);
    int64_t in_flight = 0;
    int64_t most = 0;
    for (const auto& [when, bytes] : changes) most = std::max(most, in_flight += bytes);
    INFO(streamed << " % streamed: at most " << most << " bytes at once");
    // While one is used others come, as many as there is memory for and no more.
    CHECK(static_cast<uint64_t>(most) >= 2 * kBytes);
    CHECK(resident_bytes + static_cast<uint64_t>(most) <= options.machine[1].bytes);
  }
}

TEST_CASE(
    "placement: the CPU computes with what would have to be streamed, where that takes less than both ways alone") {
  const std::vector<int64_t> floats(64, 1 << 16);
  const double bytes = 4.0 * 64 * (1 << 16);
  PlanOptions options = both_options();
  options.machine.cpu().rates = {.flops = 1e30, .memory_bandwidth = 4e9, .launch_latency = 1e-9};
  options.machine[1].rates = {
      .flops = 1e30, .memory_bandwidth = 64e9, .copy_bandwidth = 1e9, .copy_latency = 1e-6, .launch_latency = 1e-9};
  options.machine[1].bytes = static_cast<uint64_t>(0.75 * bytes);
  double seconds[4] = {};
  for (const Policy policy : {Policy::kAuto, Policy::kCpu, Policy::kAccelerator}) {
    Layers layers(floats);
    options.policy = policy;
    const Steady steady = plan_until_steady(layers.program.graph, options);
    seconds[static_cast<int>(policy)] = steady.simulation.seconds;
    if (policy != Policy::kAuto) continue;
    // The CPU runs what has no place on the accelerator, and nothing else.
    for (size_t i = 0; i < layers.weights.size(); ++i) {
      const bool resident = layers.program.graph.buffers[layers.weights[i]].valid_on >> kAccelerator & 1;
      CHECK_FALSE((resident && steady.plan.placements[i].device == kCpu));
    }
    CHECK(steady.plan.placements.front().device != steady.plan.placements.back().device);
  }
  const double alone =
      std::min(seconds[static_cast<int>(Policy::kCpu)], seconds[static_cast<int>(Policy::kAccelerator)]);
  CHECK(seconds[static_cast<int>(Policy::kAuto)] < 0.7 * alone);
}

TEST_CASE("placement: what only the accelerator's kernels touch is packed with all lifetimes known") {
  Program program;
  const auto make = [&](int64_t count, std::vector<BufferId> from) {
    std::vector<Operand> operands;
    for (const BufferId b : from) operands.push_back(program.read(b));
    return program.define(test_ops().pointwise, count, operands);
  };
  const BufferId x = program.input(16, 1u << kAccelerator);
  program.escape(x);
  // In the order of allocation, c goes into the hole of a, and d does not fit there any more.
  const BufferId a = make(2048, {x});
  const BufferId b = make(1024, {a});
  const BufferId c = make(1024, {x});
  const BufferId d = make(2048, {x});
  program.escape(make(16, {b, c, d}));
  PlanOptions options = remote_options();
  options.compute_queues = 1;
  const Plan plan = program.plan(options);
  CHECK(plan.arena_lower_bound[kAccelerator] == 4 * 4096);
  CHECK(plan.arena_bytes[kAccelerator] == plan.arena_lower_bound[kAccelerator]);
}

TEST_CASE("placement: within any memory, the bits are the interpreter's and the plan is legal") {
  std::mt19937 random(5);
  int64_t returns = 0;
  int64_t remote = 0;
  for (int round = 0; round < 300; ++round) {
    Program program;
    make_random(program, random, 10 + round % 40, round % 2 == 0);
    PlanOptions options = round % 3 == 0 ? both_options() : round % 3 == 1 ? mixed_options() : remote_options();
    uint64_t there = 0;
    uint64_t all = 0;
    for (const Buffer& buffer : program.graph.buffers) {
      if (buffer.valid_on >> kAccelerator & 1) there += SliceAllocator::round_up(buffer.bytes);
      all += SliceAllocator::round_up(buffer.bytes);
    }
    options.machine[1].bytes = there + 512 + random() % (all + 1);
    const Plan plan = program.plan(options);
    returns += static_cast<int64_t>(plan.returns.size());
    const Results got = program.run_plan(plan);
    remote += got.counts.kernels[kAccelerator];
    INFO(to_string(program.graph));
    INFO(to_string(plan));
    REQUIRE(got.status.ok());
    REQUIRE(same_values(program, got, program.interpret()));
  }
  CHECK(returns > 50);
  CHECK(remote > 500);
}

TEST_CASE("placement: a thousand nodes are planned in less than a second") {
  std::vector<int64_t> floats(1000, 4096);
  Layers layers(floats);
  PlanOptions options = both_options();
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1000} * 4096}) {
    options.machine[1].bytes = bytes;
    Plan plan;
    make_plan(layers.program.graph, options, plan);
    const auto begin = std::chrono::steady_clock::now();
    make_plan(layers.program.graph, options, plan);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("planning 1,000 nodes, %s: %.0f ms\n", bytes == 0 ? "all fit" : "a quarter fits", 1e3 * seconds);
    CHECK(verify_plan(layers.program.graph, plan, options).ok());
    CHECK(seconds < 1);
  }
}

TEST_CASE("placement: a copy that pays for many runs is no part of a run, its share is") {
  // Two tasks, each with a weight on the CPU that takes 1 s to copy.
  Tasks two({{10, 1}, {10, 1}});
  two.finish({{}, {0}});
  for (uint32_t t = 0; t < 2; ++t) {
    const auto weight = static_cast<BufferId>(two.graph.values.size());
    two.graph.values.push_back(
        {.bytes = 64, .valid_on = 1u << kCpu, .amortized = t == 0, .copy_seconds = {0, t == 0 ? 0.25 : 1.0}});
    Task& task = two.graph.tasks[t];
    const std::vector<Use> uses(two.graph.begin(task), two.graph.end(task));
    task.first_use = static_cast<uint32_t>(two.graph.uses.size());
    two.graph.uses.insert(two.graph.uses.end(), uses.begin(), uses.end());
    two.graph.uses.push_back({weight, true, false});
    ++task.use_count;
  }
  // The first weight's copy holds up nothing. The second's takes place while the first task runs.
  CHECK(seconds_of(two.graph, {kAccelerator, kAccelerator}) == Approx(1 + 1 + 0.25));
  CHECK(seconds_of(two.graph, {kCpu, kCpu}) == Approx(20));
}

}  // namespace hetero::graph::testing
