// What is lost where members of a group fail or read what is lost, and what the verifier finds in damaged groups.

#include "backend/fault/fault_device.h"
#include "graph/fusion/fusion.h"
#include "graph/verify/verify.h"
#include "tests/graph/fusion/fusable.h"

namespace hetero::graph::testing {

TEST_CASE("fusion: a body that fails loses what its tail would have written") {
  Fusable p;
  const BufferId x = p.input(24), bias = p.input(6), y = p.input(24);
  const BufferId a = p.product(bias, x);
  p.add(test_ops().throws, {p.read(y), p.write(x)});
  const BufferId b = p.map_matrix({p.matrix(a, Access::kRead), p.matrix(y, Access::kRead)});
  p.escape(b);
  p.escape(x);
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.program[0].kind == Kind::kBody);
  const Results expected = p.interpret();
  // The failing node does not touch the tail, which then runs on its own.
  Results got = p.run_plan(plan);
  CHECK_FALSE(got.bindings[x].error.ok());
  CHECK(got.bindings[b].error.ok());
  CHECK(got.values[b] == expected.values[b]);
  p.graph.nodes[0].op = test_ops().throws;
  got = p.run_plan(plan);
  CHECK_FALSE(got.bindings[b].error.ok());
}

TEST_CASE("fusion: a poisoned input poisons what depends on it, and nothing else of its group") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId y = p.input(24);
  const BufferId bad = p.define(test_ops().throws, 24, {p.read(x)});
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.read(a), p.read(bad)});
  const BufferId c = p.map({p.read(a), p.read(y)});
  p.escape(b);
  p.escape(c);
  REQUIRE(p.groups() == std::vector<Members>{{1, 2, 3}});
  const Results got = p.run(fused_options());
  CHECK_FALSE(got.status.ok());
  CHECK(got.status.message() == "test::throws: broken kernel");
  CHECK_FALSE(got.bindings[b].error.ok());
  CHECK(got.bindings[c].error.ok());
  CHECK(same_values(p, got, p.interpret()));
  CHECK(got.counts.fused_groups == 0);
}

TEST_CASE("fusion: a number that is lost does not take another one with it") {
  Fusable p;
  const BufferId x = p.input(1), y = p.input(1);
  p.escape(y);
  const BufferId bad = p.define(test_ops().throws, 1, {p.read(x)});
  const BufferId a = p.map({p.read(bad)}, 1);
  p.add(test_ops().map, {p.update(y)});
  p.escape(a);
  REQUIRE(p.groups() == std::vector<Members>{{1, 2}});
  const Results got = p.run(fused_options());
  CHECK_FALSE(got.bindings[a].error.ok());
  CHECK(got.bindings[y].error.ok());
  CHECK(same_values(p, got, p.interpret()));
}

TEST_CASE("fusion: a group that cannot get its memory runs member by member") {
  Fusable p;
  const BufferId x = p.input(24);
  const BufferId a = p.map({p.read(x)});
  const BufferId b = p.map({p.read(p.map({p.read(a)}))});
  const BufferId c = p.map({p.read(x)});
  const BufferId results[] = {a, b, c};
  for (const BufferId result : results) p.escape(result);
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.groups.size() == 1);
  const Results expected = p.interpret();
  for (int nth = 1; nth <= 3; ++nth) {
    for (const auto duration : {backend::FaultDuration::kOnce, backend::FaultDuration::kForEver}) {
      backend::FaultDevice faulty(*test_devices()[0]);
      Results got;
      got.bindings = p.bind(test_devices());
      Executor executor({&faulty, nullptr});
      faulty.fail(backend::FaultKind::kAllocation, nth, duration);
      got.status = executor.run(p.graph, plan, p.pointers(got.bindings), got.counts);
      p.read_values(got, test_devices());
      CHECK(got.counts.fused_groups == 0);
      if (duration == backend::FaultDuration::kOnce) {
        // The second try, for the member alone, gets it.
        CHECK(got.status.ok());
        CHECK(got.counts.kernels[0] == 4);
        CHECK(same_values(p, got, expected));
        continue;
      }
      CHECK(got.status.error_class() == ErrorClass::kResource);
      for (int i = 0; i < 3; ++i) {
        // Alone, the member before b needs memory too.
        const bool healthy = i == 0 && nth > 1;
        CHECK(got.bindings[results[i]].error.ok() == healthy);
        if (healthy) CHECK(got.values[results[i]] == expected.values[results[i]]);
      }
    }
  }
}

TEST_CASE("fusion: random programs with failing nodes and lost inputs end as the interpreter does") {
  std::mt19937 random(52);
  int poisoned = 0;
  for (int round = 0; round < 200; ++round) {
    Program program;
    make_fusable(program, random, 40);
    for (Node& node : program.graph.nodes) {
      if (random() % 40 == 0) node.op = test_ops().throws;
    }
    const Plan plan = program.plan(fused_options());
    poisoned += lost_as_interpreted(program, plan);
  }
  CHECK(poisoned > 100);
}

TEST_CASE("verify: groups that are damaged are found, or do no harm") {
  std::mt19937 random(53);
  int tried = 0;
  int found = 0;
  for (int round = 0; round < 60; ++round) {
    Program program;
    make_fusable(program, random, 30);
    const PlanOptions options = fused_options();
    const Plan plan = program.plan(options);
    const Results expected = program.interpret();
    const auto check = [&](const Plan& damaged) {
      ++tried;
      if (!verify_plan(program.graph, damaged, options).ok()) {
        ++found;
        return;
      }
      Plan run = damaged;
      for (FusedGroup& group : run.groups) {
        group.prepared = backend::prepare_fused(group.kernel, group.space, group.launch).ok();
      }
      INFO(to_string(program.graph));
      INFO(to_string(run));
      REQUIRE(same_values(program, program.run_plan(run), expected));
    };
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const FusedGroup& group = plan.groups[g];
      for (size_t s = 0; s < group.kernel.steps.size(); ++s) {
        Plan damaged = plan;
        auto& steps = damaged.groups[g].kernel.steps;
        steps.erase(steps.begin() + static_cast<long>(s));
        check(damaged);
        damaged = plan;
        if (backend::FusedStep& step = damaged.groups[g].kernel.steps[s]; step.input_count > 0) {
          step.inputs[0] = static_cast<uint16_t>(random() % group.kernel.values.size());
          check(damaged);
        }
      }
      for (size_t k = 0; k < group.operands.size(); ++k) {
        Plan damaged = plan;
        damaged.groups[g].space.operands[k].offset += 4;
        check(damaged);
        damaged = plan;
        for (int d = 0; d < group.space.rank; ++d) damaged.groups[g].space.operands[k].strides[d] = 0;
        check(damaged);
      }
      Plan damaged = plan;
      std::swap(damaged.groups[g].members.front(), damaged.groups[g].members.back());
      if (group.members.size() > 1) check(damaged);
      for (backend::Number& number : damaged.groups[g].numbers) number.f32 += 1;
      if (!damaged.groups[g].numbers.empty()) check(damaged);
    }
    for (size_t p = 0; p + 1 < plan.program.size(); ++p) {
      Plan damaged = plan;
      damaged.program.erase(damaged.program.begin() + static_cast<long>(p));
      REQUIRE_FALSE(verify_plan(program.graph, damaged, options).ok());
    }
  }
  CHECK(tried > 1000);
  CHECK(found * 10 > tried * 8);
}

}  // namespace hetero::graph::testing
