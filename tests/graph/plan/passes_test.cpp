// What each pass promises, on small programs where one can see the answer.

#include <algorithm>
#include <array>

#include "graph/cost/cost.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {

using backend::kAccelerator;
using backend::kCpu;
using backend::QueueKind;
using Kind = Instruction::Kind;

namespace {

constexpr uint8_t kOnAccelerator = 1u << kAccelerator;

int count(const Plan& plan, Kind kind) {
  return static_cast<int>(std::ranges::count(plan.program, kind, [](const Instruction& i) { return i.kind; }));
}

std::vector<int> live_nodes(const Plan& plan) {
  std::vector<int> nodes;
  for (size_t n = 0; n < plan.live.size(); ++n) {
    if (plan.live[n]) nodes.push_back(static_cast<int>(n));
  }
  return nodes;
}

}  // namespace

TEST_CASE("conflicts: overlapping bytes of one buffer, and one of the two writes") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId y = p.input(8);
  const Operand low_read = p.operand(x, Access::kRead, {4}, {1}, 0);
  const Operand low_write = p.operand(x, Access::kWrite, {4}, {1}, 0);
  const Operand high_write = p.operand(x, Access::kWrite, {4}, {1}, 4);
  CHECK(conflicts(p.windows, low_write, low_read));
  CHECK(conflicts(p.windows, low_read, p.update(x)));
  CHECK_FALSE(conflicts(p.windows, low_read, p.read(x)));
  CHECK_FALSE(conflicts(p.windows, low_read, high_write));
  CHECK_FALSE(conflicts(p.windows, p.write(x), p.write(y)));
  CHECK(conflicts(p.windows, p.operand(x, Access::kDefine, {0}, {1}, 0), low_read));
}

TEST_CASE("dead values: only what the caller can see is computed") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId used = p.define(test_ops().pointwise, 8, {p.read(x)});
  p.define(test_ops().pointwise, 8, {p.read(used)});  // nobody reads it
  const BufferId result = p.define(test_ops().pointwise, 8, {p.read(used)});
  p.escape(result);
  const Plan plan = p.plan(cpu_options());
  CHECK(live_nodes(plan) == std::vector<int>{0, 2});
  CHECK(plan.dead_nodes == 1);
}

TEST_CASE("dead values: a whole overwrite ends the need, a partial one does not") {
  Program p;
  const BufferId x = p.input(8);
  p.escape(x);
  p.add(test_ops().pointwise, {p.write(x)});  // overwritten by 1
  p.add(test_ops().pointwise, {p.write(x)});
  p.add(test_ops().pointwise, {p.operand(x, Access::kWrite, {4}, {1}, 0)});  // keeps the rest of 1
  p.add(test_ops().pointwise, {p.update(x)});
  CHECK(live_nodes(p.plan(cpu_options())) == std::vector<int>{1, 2, 3});

  Program q;
  const BufferId y = q.input(8);
  q.escape(y);
  q.add(test_ops().pointwise, {q.write(y)});
  q.add(test_ops().pointwise, {q.operand(y, Access::kWrite, {4, 2}, {1, 4}, 0)});  // dense, transposed
  CHECK(live_nodes(q.plan(cpu_options())) == std::vector<int>{1});
}

TEST_CASE("dead values: side effects run, and need what they read") {
  Program p;
  const BufferId x = p.input(8);
  const BufferId a = p.define(test_ops().pointwise, 8, {p.read(x)});
  p.define(test_ops().effect, 8, {p.read(a)});
  CHECK(live_nodes(p.plan(cpu_options())) == std::vector<int>{0, 1});
  const int before = effect_count();
  CHECK(p.run(cpu_options()).status.ok());
  CHECK(effect_count() == before + 1);
}

TEST_CASE("placement: each reason") {
  const auto placed = [](OpId op, int64_t count, uint8_t valid_on, Preference preference) {
    Program p;
    const BufferId x = p.input(count, valid_on);
    p.escape(p.define(op, count, {p.read(x)}, preference));
    PlanOptions options = both_options();
    options.machine[1].rates.copy_bandwidth = 1e6;
    const Placement placement = p.plan(options).placements[0];
    CHECK(placement.predicted_seconds > 0);
    CHECK(placement.elsewhere_seconds > 0);
    return std::pair(placement.device, placement.reason);
  };
  const TestOps& ops = test_ops();
  constexpr uint8_t kOnCpu = 1u << kCpu;
  constexpr int64_t kMany = 1 << 18;
  CHECK(placed(ops.pointwise, 8, kOnCpu, Preference::kAuto) == std::pair(kCpu, Reason::kFaster));
  CHECK(placed(ops.pointwise, kMany, kOnAccelerator, Preference::kAuto) == std::pair(kAccelerator, Reason::kFaster));
  // The copy would take longer than the CPU does.
  CHECK(placed(ops.pointwise, kMany, kOnCpu, Preference::kAuto) == std::pair(kCpu, Reason::kSavesTime));
  CHECK(placed(ops.cpu_only, 8, kOnCpu, Preference::kAuto) == std::pair(kCpu, Reason::kUnsupported));
  CHECK(placed(ops.matmul, kMany, kOnAccelerator, Preference::kCpu) == std::pair(kCpu, Reason::kRequested));
  CHECK(placed(ops.matmul, 8, kOnCpu, Preference::kAccelerator) == std::pair(kAccelerator, Reason::kRequested));
}

TEST_CASE("placement: without an accelerator everything runs on the CPU") {
  Program p;
  const BufferId x = p.input(8);
  p.escape(p.define(test_ops().matmul, 8, {p.read(x)}, Preference::kAccelerator));
  const Plan plan = p.plan(cpu_options());
  CHECK(plan.placements[0] == Placement{});
  CHECK(plan.program.size() == 1);
}

TEST_CASE("placement: what does not fit the accelerator's memory runs on the CPU") {
  Program p;
  const BufferId x = p.input(1000);
  BufferId value = x;
  for (int i = 0; i < 4; ++i) {
    value = p.define(test_ops().matmul, 1000, {p.read(value), p.read(x)});
    p.escape(value);
  }
  PlanOptions options = remote_options();
  // Three of the six at a time: they come and go.
  options.machine[1].bytes = 4 * 4096;
  for (const Placement& placement : p.plan(options).placements) CHECK(placement.device == kAccelerator);
  CHECK(same_values(p, p.run(options), p.interpret()));

  options.machine[1].bytes = 64;
  for (const Placement& placement : p.plan(options).placements) {
    CHECK(placement.device == kCpu);
    CHECK(placement.reason == Reason::kNoMemory);
  }
}

TEST_CASE("copies: one for each reader's device, none where the bytes are") {
  Program p;
  const BufferId x = p.input(64);
  const BufferId a = p.define(test_ops().matmul, 64, {p.read(x)});
  const BufferId b = p.define(test_ops().matmul, 64, {p.read(x), p.read(a)});  // x is there already
  p.escape(p.define(test_ops().cpu_only, 64, {p.read(b)}));
  p.escape(p.define(test_ops().cpu_only, 64, {p.read(b)}));  // b is there already
  const Plan plan = p.plan(remote_options());
  CHECK(count(plan, Kind::kCopy) == 2);
  CHECK(plan.valid_after[x] == 0b11);
  const Results results = p.run(remote_options());
  CHECK(results.counts.copies == 2);
  CHECK(results.counts.copied_bytes[kAccelerator] == 256);
  CHECK(results.counts.copied_bytes[kCpu] == 256);
  CHECK(results.counts.kernels[kCpu] == 2);
  CHECK(results.counts.kernels[kAccelerator] == 2);
}

TEST_CASE("copies: small ones of what the program has made are urgent, others are not") {
  const auto queue_of = [](const Plan& plan, BufferId buffer, backend::DeviceIndex to) {
    for (const Instruction& instruction : plan.program) {
      if (instruction.kind == Kind::kCopy && instruction.index == buffer && instruction.to == to)
        return kind_of(instruction.queue);
    }
    return QueueKind::kCompute;
  };
  constexpr int64_t kMany = kUrgentBytes / sizeof(float) + 1;
  Program p;
  const BufferId weight = p.input(64);
  const BufferId small = p.define(test_ops().cpu_only, 64, {p.read(weight)});
  const BufferId large = p.define(test_ops().cpu_only, kMany, {p.read(weight)});
  const BufferId result = p.define(test_ops().matmul, 64, {p.read(weight), p.read(small), p.read(large)});
  const BufferId many = p.define(test_ops().pointwise, kMany, {p.read(large)}, Preference::kAccelerator);
  p.escape(p.define(test_ops().cpu_only, 64, {p.read(result), p.read(many)}));
  const Plan plan = p.plan(remote_options());
  CHECK(queue_of(plan, weight, kAccelerator) == QueueKind::kHostToDevice);
  CHECK(queue_of(plan, small, kAccelerator) == QueueKind::kUrgentToDevice);
  CHECK(queue_of(plan, large, kAccelerator) == QueueKind::kHostToDevice);
  CHECK(queue_of(plan, result, kCpu) == QueueKind::kUrgentToHost);
  CHECK(queue_of(plan, many, kCpu) == QueueKind::kDeviceToHost);
  CHECK(same_values(p, p.run_plan(plan), p.interpret()));
}

TEST_CASE("copies: a write makes the other device's bytes stale") {
  Program p;
  const BufferId x = p.input(64);
  p.escape(x);
  p.add(test_ops().matmul, {p.update(x)}, Preference::kAccelerator);
  p.add(test_ops().pointwise, {p.update(x)}, Preference::kCpu);
  p.add(test_ops().matmul, {p.update(x)}, Preference::kAccelerator);
  const Plan plan = p.plan(remote_options());
  CHECK(count(plan, Kind::kCopy) == 3);
  CHECK(plan.valid_after[x] == kOnAccelerator);
  CHECK(same_values(p, p.run(remote_options()), p.interpret()));
}

TEST_CASE("copies: a whole overwrite needs no old bytes, a partial one does") {
  Program p;
  const BufferId x = p.input(64);
  p.escape(x);
  p.add(test_ops().matmul, {p.write(x)}, Preference::kAccelerator);
  CHECK(count(p.plan(remote_options()), Kind::kCopy) == 0);

  Program q;
  const BufferId y = q.input(64);
  q.escape(y);
  q.add(test_ops().matmul, {q.operand(y, Access::kWrite, {32}, {1}, 0)}, Preference::kAccelerator);
  CHECK(count(q.plan(remote_options()), Kind::kCopy) == 1);
}

TEST_CASE("copies: without room, that leaves which is used next the furthest from now") {
  std::array<size_t, 3> order{0, 1, 2};
  do {
    Program p;
    const BufferId x = p.input(64);
    std::array<BufferId, 3> made;
    for (BufferId& b : made) b = p.define(test_ops().matmul, 1000, {p.read(x)});
    // There is room for three of this size, and for all that is small.
    BufferId value = p.define(test_ops().matmul, 1000, {p.read(x)});
    for (const size_t i : order) value = p.define(test_ops().matmul, 64, {p.read(made[i]), p.read(value)});
    p.escape(value);
    PlanOptions options = remote_options();
    options.machine[1].bytes = 3 * 4096 + 2048;
    const Plan plan = p.plan(options);
    INFO(to_string(plan));
    for (const Placement& placement : plan.placements) REQUIRE(placement.device == kAccelerator);
    REQUIRE(plan.returns.size() == 1);
    CHECK(plan.returns[0].buffer == made[order[2]]);
    const Results results = p.run_plan(plan);
    // x goes there; the victim goes and comes back; the result goes.
    CHECK(results.counts.copied_bytes[kAccelerator] == 256 + 4000);
    CHECK(results.counts.copied_bytes[kCpu] == 4000 + 256);
    CHECK(same_values(p, results, p.interpret()));
  } while (std::ranges::next_permutation(order).found);
}

TEST_CASE("residency: one that is much larger than the others stays, where three of its size would not fit") {
  constexpr int64_t kSmall = 4096, kLarge = 8 * kSmall;
  constexpr int kLayers = 40;
  Program p;
  std::vector<BufferId> weights;
  BufferId value = p.input(64);
  for (int layer = 0; layer <= kLayers; ++layer) {
    weights.push_back(p.input(layer == kLayers ? kLarge : kSmall));
    p.graph.buffers[weights.back()].steady = p.graph.buffers[weights.back()].escapes = true;
    value = p.define(test_ops().matmul, 64, {p.read(value), p.read(weights.back())});
  }
  p.escape(value);
  PlanOptions options = remote_options();
  // The large one, and three small ones.
  options.machine[1].bytes = (kLarge + 4 * kSmall) * sizeof(float);
  const Plan plan = p.plan(options);
  INFO(to_string(plan));
  for (const Placement& placement : plan.placements) REQUIRE(placement.device == kAccelerator);
  CHECK(plan.valid_after[weights.back()] == (kOnAccelerator | 1u << kCpu));
  CHECK(same_values(p, p.run_plan(plan), p.interpret()));
}

TEST_CASE("events: a queue waits once for what it does not know yet") {
  Program p;
  const BufferId x = p.input(64);
  const BufferId y = p.input(64);
  const BufferId a = p.define(test_ops().matmul, 64, {p.read(x), p.read(y)});
  const BufferId b = p.define(test_ops().matmul, 64, {p.read(x), p.read(a)});
  p.escape(p.define(test_ops().cpu_only, 64, {p.read(b)}));
  const Plan plan = p.plan(remote_options());
  // The first matmul waits for the second copy, which covers the first; d2h waits for b; the CPU
  // waits for d2h.
  CHECK(count(plan, Kind::kCopy) == 3);
  CHECK(count(plan, Kind::kWait) == 3);
  CHECK(count(plan, Kind::kRecord) == 3);
}

TEST_CASE("events: what the CPU has waited for, every queue knows") {
  Program p;
  const BufferId x = p.input(64);
  const BufferId a = p.define(test_ops().matmul, 64, {p.read(x)});
  const BufferId b = p.define(test_ops().cpu_only, 64, {p.read(a)});
  const BufferId c = p.define(test_ops().matmul, 64, {p.read(b), p.read(a)});
  p.escape(c);
  const Plan plan = p.plan(remote_options());
  // x to the accelerator, a to the host, b to the accelerator: each consumer waits, and nobody
  // else.
  CHECK(count(plan, Kind::kWait) == 4);
}

TEST_CASE("memory: values that are not in use together share bytes") {
  Program p;
  BufferId value = p.input(64);
  for (int i = 0; i < 10; ++i) value = p.define(test_ops().pointwise, 64, {p.read(value)});
  p.escape(value);
  const Plan plan = p.plan(cpu_options());
  CHECK(plan.arena_bytes[kCpu] == 2 * 256);
  CHECK(plan.arena_lower_bound[kCpu] == 2 * 256);
  CHECK(plan.residence(value, kCpu).home == Home::kBound);
}

TEST_CASE("memory: homes") {
  Program p;
  const BufferId x = p.input(64);
  const BufferId brought = p.define(test_ops().brings, 64, {p.read(x)});
  const BufferId small = p.define(test_ops().pointwise, 64, {p.read(brought)});
  const BufferId large = p.define(test_ops().pointwise, 1000, {p.read(small)});
  const BufferId escaping = p.define(test_ops().brings, 64, {p.read(large)});
  p.escape(escaping);
  const Plan plan = p.plan(cpu_options());
  CHECK(plan.residence(x, kCpu).home == Home::kBound);
  CHECK(plan.residence(brought, kCpu).home == Home::kBrought);
  CHECK(plan.residence(small, kCpu).home == Home::kArena);
  CHECK(plan.residence(large, kCpu).home == Home::kOwned);
  CHECK(plan.residence(escaping, kCpu).home == Home::kBrought);
  CHECK(same_values(p, p.run(cpu_options()), p.interpret()));
}

TEST_CASE("memory: what a copy queue uses lies in the arena") {
  Program p;
  const BufferId x = p.input(1000);
  const BufferId a = p.define(test_ops().brings, 1000, {p.read(x)}, Preference::kCpu);
  const BufferId b = p.define(test_ops().pointwise, 1000, {p.read(a)}, Preference::kCpu);
  p.escape(p.define(test_ops().matmul, 1000, {p.read(a), p.read(b)}, Preference::kAccelerator));
  const Plan plan = p.plan(remote_options());
  CHECK(plan.residence(a, kCpu).home == Home::kArena);
  CHECK(plan.residence(b, kCpu).home == Home::kArena);
  CHECK(same_values(p, p.run(remote_options()), p.interpret()));
}

TEST_CASE("memory: the arena is little larger than what is live at once") {
  std::mt19937 random(11);
  double used = 0;
  double needed = 0;
  for (int round = 0; round < 50; ++round) {
    Program p;
    make_random(p, random, 200, false);
    const Plan plan = p.plan(cpu_options());
    used += static_cast<double>(plan.arena_bytes[kCpu]);
    needed += static_cast<double>(plan.arena_lower_bound[kCpu]);
  }
  CHECK(used <= 1.15 * needed);
}

TEST_CASE("a plan that is reused for another graph is the plan of that graph") {
  std::mt19937 random(12);
  Plan reused;
  for (int round = 0; round < 20; ++round) {
    Program p;
    make_random(p, random, 10 + 10 * (round % 5), round % 2 == 0);
    const PlanOptions options = round % 2 == 0 ? remote_options() : cpu_options();
    make_plan(p.graph, options, reused);
    CHECK(reused == p.plan(options));
  }
}

}  // namespace hetero::graph::testing
