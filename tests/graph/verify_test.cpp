// The verifier finds what breaks a plan: plans of random programs are damaged in one place, and
// either the verifier objects or the program still gives the right bits.

#include "graph/verify.h"

#include <functional>

#include "tests/graph/catch.h"
#include "tests/graph/program.h"

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

Plan without(const Plan& plan, size_t position) {
  Plan damaged = plan;
  damaged.program.erase(damaged.program.begin() + static_cast<long>(position));
  for (Residence& residence : damaged.residences) {
    residence.first -= residence.first > position;
    residence.last -= residence.last > position;
  }
  return damaged;
}

}  // namespace

TEST_CASE("verify: every wait and every record is needed") {
  int tried = 0;
  for_random_plans(1, 40, [&](Program& program, const Plan& plan, const PlanOptions& options) {
    for (size_t p = 0; p < plan.program.size(); ++p) {
      const Kind kind = plan.program[p].kind;
      if (kind != Kind::kWait && kind != Kind::kRecord) continue;
      ++tried;
      INFO(to_string(plan));
      INFO("without p" << p);
      REQUIRE(caught(program, without(plan, p), options));
    }
  });
  CHECK(tried > 500);
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
      damaged.program[p].queue = static_cast<QueueId>((plan.program[p].queue + 1) % kMaxQueues);
      if (plan.program[p].kind != Kind::kWait && plan.program[p].kind != Kind::kRecord) {
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
