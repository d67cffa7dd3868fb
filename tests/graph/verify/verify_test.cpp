// The verifier finds what breaks a plan: plans of random programs are damaged in one place, and
// either the verifier objects or the program still gives the right bits.

#include "graph/verify/verify.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "backend/sim/sim_device.h"
#include "graph/plan/slice_allocator.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/verify/damage.h"

namespace hetero::graph::testing {
namespace {

using Kind = Instruction::Kind;

// Calls `damage` for plans of random programs.
void for_random_plans(int seed, int rounds,
                      const std::function<void(Program&, const Plan&, const PlanOptions&)>& damage) {
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int round = 0; round < rounds; ++round) {
    Program program;
    make_random(program, random, 30, true);
    const PlanOptions options = mixed_options();
    damage(program, program.plan(options), options);
  }
}

bool caught(const Program& program, const Plan& plan, const PlanOptions& options) {
  return !verify_plan(program.graph, plan, options).ok();
}

// For damage that may turn out to be harmless.
void require_caught_or_harmless(Program& program, const Plan& plan, const PlanOptions& options) {
  if (caught(program, plan, options)) return;
  INFO(to_string(program.graph));
  INFO(to_string(plan));
  REQUIRE(same_values(program, program.run_plan(plan), program.interpret()));
}

}  // namespace

TEST_CASE("verify: of damage of all kinds, what is not found does no harm") {
  const bool fused = GENERATE(false, true);
  constexpr int kMutations = 200;
  // Stalls bring out what happens to go well.
  const bool four = GENERATE(false, true);
  static const auto stalling = make_simulated({.schedule_seed = 5}, 1);
  static const auto three_stalling = make_simulated({.schedule_seed = 5}, 3);
  const Devices devices[] = {four ? four_devices() : test_devices(), with_cpu(four ? three_stalling : stalling)};
  int caught_of[kDamages] = {};
  int tried_of[kDamages] = {};
  int found = 0;
  int with_returns = 0;
  int with_bodies = 0;
  for_each_mutation(
      fused, kMutations, devices[0],
      [&](Damage damage, Program& program, const Plan& sound, const Plan& plan, const PlanOptions& options) {
        const auto kind = static_cast<size_t>(damage);
        ++tried_of[kind];
        with_returns += !plan.returns.empty();
        with_bodies += std::ranges::count(plan.program, Kind::kBody, &Instruction::kind) != 0;
        if (caught(program, plan, options)) {
          ++caught_of[kind];
          ++found;
          return;
        }
        INFO(kDamageNames[kind]);
        INFO(to_string(program.graph));
        INFO("sound:\n" << to_string(sound));
        INFO("damaged:\n" << to_string(plan));
        const Results expected = program.interpret();
        for (const Devices& some : devices) {
          const Results results = program.run_plan(plan, some);
          REQUIRE(results.status.ok());
          REQUIRE(same_values(program, results, expected));
        }
      });
  for (int kind = 0; kind < kDamages; ++kind) {
    std::printf("verifier%s%s, %s: %d of %d caught\n", four ? ", four devices" : "", fused ? ", fused" : "",
                kDamageNames[kind], caught_of[kind], tried_of[kind]);
  }
  std::printf("verifier%s%s: %d of %d mutations caught, %d proven harmless by running them\n",
              four ? ", four devices" : "", fused ? ", fused" : "", found, kMutations, kMutations - found);
  CHECK(found >= kMutations * 95 / 100);
  CHECK(with_returns > kMutations / 20);
  CHECK((with_bodies > kMutations / 10) == fused);
}

TEST_CASE("verify: every wait and every record is needed") {
  int tried = 0;
  int between_compute_queues = 0;
  for_random_plans(1, 40, [&](Program& program, const Plan& plan, const PlanOptions& options) {
    for (size_t p = 0; p < plan.program.size(); ++p) {
      const Kind kind = plan.program[p].kind;
      if (kind != Kind::kWait && kind != Kind::kRecord) continue;
      ++tried;
      between_compute_queues += kind == Kind::kWait && backend::is_side_compute(kind_of(plan.program[p].queue));
      INFO(to_string(plan));
      INFO("without p" << p);
      REQUIRE(caught(program, without(plan, p), options));
    }
  });
  CHECK(tried > 500);
  CHECK(between_compute_queues > 20);
}

TEST_CASE("verify: every copy and every live node is needed") {
  for_random_plans(2, 20, [](Program& program, const Plan& plan, const PlanOptions& options) {
    for (size_t p = 0; p < plan.program.size(); ++p) {
      const Kind kind = plan.program[p].kind;
      if (kind == Kind::kCopy || kind == Kind::kRun) {
        REQUIRE(caught(program, without(plan, p), options));
      }
    }
  });
}

TEST_CASE("verify: a live node marked dead is found") {
  for_random_plans(3, 20, [](Program& program, const Plan& plan, const PlanOptions& options) {
    for (size_t p = 0; p < plan.program.size(); ++p) {
      if (plan.program[p].kind != Kind::kRun) continue;
      Plan damaged = without(plan, p);
      damaged.live[plan.program[p].index] = 0;
      ++damaged.dead_nodes;
      if (!caught(program, damaged, options)) {
        // Liveness counts by buffer: a write of bytes that nobody reads may live, and may as well
        // die.
        REQUIRE(same_values(program, program.run_plan(damaged), program.interpret()));
      }
    }
  });
}

TEST_CASE("verify: an arena slice that moves is found, unless it moves to free bytes") {
  for_random_plans(4, 20, [](Program& program, const Plan& plan, const PlanOptions& options) {
    for (size_t r = 0; r < plan.residences.size(); ++r) {
      if (plan.residences[r].home != Home::kArena) continue;
      for (const int64_t shift : {-128, -64, 32, 64, 128, 1 << 20}) {
        Plan damaged = plan;
        damaged.residences[r].offset += static_cast<uint64_t>(shift);
        if (shift == 32 || shift == 1 << 20) {
          REQUIRE(caught(program, damaged, options));
        } else {
          require_caught_or_harmless(program, damaged, options);
        }
      }
    }
  });
}

TEST_CASE("verify: a lifetime that is not what is touched is found") {
  for_random_plans(5, 20, [](Program& program, const Plan& plan, const PlanOptions& options) {
    for (size_t r = 0; r < plan.residences.size(); ++r) {
      if (plan.residences[r].home == Home::kNone) continue;
      Plan damaged = plan;
      --damaged.residences[r].last;
      REQUIRE(caught(program, damaged, options));
      damaged = plan;
      ++damaged.residences[r].first;
      REQUIRE(caught(program, damaged, options));
    }
  });
}

TEST_CASE(
    "verify: two instructions that change places are found, unless nothing depends on their "
    "order") {
  for_random_plans(6, 20, [](Program& program, const Plan& plan, const PlanOptions& options) {
    for (size_t p = 0; p + 1 < plan.program.size(); ++p) {
      Plan damaged = plan;
      std::swap(damaged.program[p], damaged.program[p + 1]);
      const auto follow = [p](uint32_t& position) {
        position = position == p ? position + 1 : position == p + 1 ? position - 1 : position;
      };
      for (size_t r = 0; r < damaged.residences.size(); ++r) {
        Residence& residence = damaged.residences[r];
        if (residence.home == Home::kNone) continue;
        // A value that both touch keeps its lifetime.
        if (residence.first != residence.last && residence.first == p && residence.last == p + 1) continue;
        follow(residence.first);
        follow(residence.last);
      }
      require_caught_or_harmless(program, damaged, options);
    }
  });
}

TEST_CASE("verify: a node on another queue, device or event is found") {
  for_random_plans(7, 20, [](Program& program, const Plan& plan, const PlanOptions& options) {
    for (size_t p = 0; p < plan.program.size(); ++p) {
      Plan damaged = plan;
      const auto other = static_cast<QueueId>((plan.program[p].queue + 1) % kMaxQueues);
      damaged.program[p].queue = other;
      const bool may_compute = backend::is_side_compute(kind_of(plan.program[p].queue)) && other != kHostQueue;
      if (may_compute) {
        require_caught_or_harmless(program, damaged, options);
      } else if (plan.program[p].kind != Kind::kWait && plan.program[p].kind != Kind::kRecord) {
        REQUIRE(caught(program, damaged, options));
      }
      damaged = plan;
      damaged.program[p].index = 1000000;
      REQUIRE(caught(program, damaged, options));
    }
    for (uint32_t n = 0; n < plan.live.size(); ++n) {
      if (!plan.live[n]) continue;
      Plan damaged = plan;
      damaged.placements[n].device ^= 1;
      REQUIRE(caught(program, damaged, options));
    }
  });
}

TEST_CASE("verify: a result that is claimed where it is not is found") {
  for_random_plans(8, 20, [](Program& program, const Plan& plan, const PlanOptions& options) {
    for (BufferId b = 0; b < plan.valid_after.size(); ++b) {
      if (!program.graph.buffers[b].escapes || plan.valid_after[b] == 0) continue;
      Plan damaged = plan;
      damaged.valid_after[b] = 0;
      REQUIRE(caught(program, damaged, options));
      if (plan.valid_after[b] == 0b11) continue;
      damaged.valid_after[b] = 0b11;
      REQUIRE(caught(program, damaged, options));
    }
  });
}

TEST_CASE("verify: an accelerator that is not there is not used") {
  Program p;
  const BufferId x = p.input(8);
  p.escape(p.define(test_ops().matmul, 8, {p.read(x)}));
  const Plan plan = p.plan(mixed_options());
  CHECK(verify_plan(p.graph, plan, mixed_options()).ok());
  CHECK(caught(p, plan, cpu_options()));
}

TEST_CASE("verify: memory that the accelerator may not take is found") {
  std::mt19937 random(10);
  int without_arena = 0;
  for (int round = 0; round < 60; ++round) {
    Program program;
    make_random(program, random, 2 + round % 20, round % 2 == 0);
    PlanOptions options = remote_options();
    const Plan plan = program.plan(options);
    uint64_t bytes = plan.arena_bytes[backend::kAccelerator];
    bool takes = bytes > 0;
    for (BufferId b = 0; b < program.graph.buffers.size(); ++b) {
      const Buffer& buffer = program.graph.buffers[b];
      const bool there = (buffer.valid_on >> backend::kAccelerator & 1) != 0;
      const bool bound = plan.residence(b, backend::kAccelerator).home == Home::kBound;
      if (there || bound) bytes += SliceAllocator::round_up(buffer.bytes);
      takes |= bound && !there;
    }
    options.machine[1].bytes = std::max<uint64_t>(bytes, 1);
    REQUIRE_FALSE(caught(program, plan, options));
    options.machine[1].bytes = bytes - 1;
    if (bytes > 1) REQUIRE(caught(program, plan, options) == takes);
    without_arena += takes && plan.arena_bytes[backend::kAccelerator] == 0;
  }
  CHECK(without_arena > 0);
}

TEST_CASE("verify: an input that lies on the accelerator is not looked for in the arena") {
  Program p;
  const BufferId x = p.input(16, 1u << backend::kAccelerator);
  p.escape(p.define(test_ops().matmul, 16, {p.read(x)}));
  Plan plan = p.plan(remote_options());
  Residence& residence = plan.residence(x, backend::kAccelerator);
  REQUIRE(residence.home == Home::kBound);
  residence.home = Home::kArena;
  residence.offset = plan.arena_bytes[backend::kAccelerator];
  plan.arena_bytes[backend::kAccelerator] += 64;
  plan.valid_after[x] = 0;
  CHECK(caught(p, plan, remote_options()));
}

TEST_CASE("verify: what is read through the window through which it was written needs nothing around it") {
  Program p;
  const BufferId x = p.input(24);
  const BufferId y = p.define(test_ops().map, 24, {p.read(x)});
  p.escape(p.define(test_ops().map, 24, {p.read(y)}));
  const auto columns = [&](BufferId buffer, Access access) { return p.operand(buffer, access, {4, 3}, {6, 2}, 0); };
  p.add(test_ops().map, {columns(x, Access::kRead), columns(y, Access::kWrite)});
  const BufferId z = p.empty(12);
  p.add(test_ops().map, {columns(y, Access::kRead), p.operand(z, Access::kDefine, {4, 3}, {3, 1}, 0)});
  p.escape(z);
  const Plan plan = p.plan(fused_options());
  // Nobody stores y: each group has the values that it reads of it.
  REQUIRE(plan.groups.size() == 2);
  CHECK(plan.residence(y, backend::kCpu).home == Home::kNone);
  CHECK(same_values(p, p.run_plan(plan), p.interpret()));
}

TEST_CASE("verify: a group that its engine refuses is found on the accelerator") {
  Program p;
  const BufferId x = p.input(16);
  const BufferId y = p.define(test_ops().map, 16, {p.read(x)});
  p.escape(p.define(test_ops().map, 16, {p.read(y)}));
  for (const bool remote : {false, true}) {
    PlanOptions options = remote ? remote_options() : cpu_options();
    options.fusion = true;
    Plan plan = p.plan(options);
    REQUIRE(plan.groups.size() == 1);
    CHECK(!caught(p, plan, options));
    plan.groups[0].prepared = false;
    CHECK(caught(p, plan, options) == remote);
  }
}

TEST_CASE("verify: who reads a product before its tail has run is found, on either device") {
  for (const Preference reader : {Preference::kCpu, Preference::kAccelerator}) {
    Program p;
    const BufferId x = p.input(24), bias = p.input(6);
    const auto matrix = [&](BufferId buffer, Access access) { return p.operand(buffer, access, {4, 6}, {6, 1}, 0); };
    const BufferId product = p.empty(24);
    p.add(test_ops().product,
          {p.operand(bias, Access::kRead, {6}, {1}, 0), matrix(x, Access::kRead), matrix(product, Access::kDefine)});
    const BufferId sum = p.empty(24);
    p.add(test_ops().map, {matrix(product, Access::kRead), matrix(sum, Access::kDefine)});
    const BufferId after = p.define(test_ops().matmul, 24, {p.read(product)}, reader);
    for (const BufferId b : {sum, after}) p.escape(b);
    PlanOptions options = remote_options();
    options.fusion = true;
    const Plan plan = p.plan(options);
    REQUIRE(plan.groups.size() == 1);
    const auto group =
        static_cast<size_t>(std::ranges::find(plan.program, Kind::kFused, &Instruction::kind) - plan.program.begin());
    int tried = 0;
    for (size_t other = group + 1; other < plan.program.size(); ++other) {
      if (plan.program[other].kind == Kind::kRecord || plan.program[other].kind == Kind::kWait) continue;
      // All that comes after the group now comes before it, in whatever order that may be in.
      Plan damaged = plan;
      std::rotate(damaged.program.begin() + static_cast<long>(group),
                  damaged.program.begin() + static_cast<long>(group) + 1,
                  damaged.program.begin() + static_cast<long>(other) + 1);
      const Instruction& moved = plan.program[other];
      const bool reads = moved.kind == Kind::kRun || (moved.kind == Kind::kCopy && moved.index == product);
      if (!reads) continue;
      ++tried;
      CHECK(caught(p, damaged, options));
    }
    CHECK(tried > 0);
  }
}

TEST_CASE("verify_graph: what is out of range or defined twice is found") {
  const auto broken = [](auto change) {
    Program p;
    const BufferId x = p.input(8);
    const BufferId y = p.define(test_ops().pointwise, 8, {p.read(x)});
    p.add(test_ops().pointwise, {p.read(y), p.update(x)});
    REQUIRE(verify_graph(p.graph).ok());
    change(p);
    const Status status = verify_graph(p.graph);
    return !status.ok() && status.error_class() == ErrorClass::kInternal;
  };
  CHECK(broken([](Program& p) { p.graph.operands[0].buffer = 9; }));
  CHECK(broken([](Program& p) { p.graph.operands[0].window = 999; }));
  CHECK(broken([](Program& p) { p.graph.nodes[0].op = 9999; }));
  CHECK(broken([](Program& p) { p.graph.nodes[1].first_operand = 100; }));
  CHECK(broken([](Program& p) { p.graph.nodes[1].attribute_bytes = 100; }));
  CHECK(broken([](Program& p) { p.graph.nodes[0].output_count = 3; }));
  CHECK(broken([](Program& p) { p.graph.nodes[0].output_count = 0; }));
  CHECK(broken([](Program& p) { p.graph.buffers[0].bytes = 4; }));
  CHECK(broken([](Program& p) { p.graph.buffers[1].valid_on = 1; }));
  CHECK(broken([](Program& p) {
    p.graph.operands[3].access = Access::kDefine;
    p.graph.nodes[1].output_count = 1;
  }));
  CHECK(broken([](Program& p) { p.graph.windows = nullptr; }));
}

}  // namespace hetero::graph::testing
