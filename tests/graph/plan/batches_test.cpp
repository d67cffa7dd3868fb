// Calls that read one operand run together.

#include "backend/fault/fault_device.h"
#include "graph/plan/resize.h"
#include "graph/verify/verify.h"
#include "tests/graph/fusion/fusable.h"

namespace hetero::graph::testing {

TEST_CASE("batches: products of one operand run together, at the place of the first") {
  Fusable p;
  const BufferId x = p.input(24), bias = p.input(6);
  const BufferId q = p.product(bias, x);
  const BufferId used = p.matmul(q);
  const BufferId k = p.product(bias, x);
  const BufferId v = p.product(bias, x);
  const BufferId joined = p.map_matrix({p.matrix(v, Access::kRead)});
  for (const BufferId result : {used, k, joined}) p.escape(result);
  const Results results = p.check();
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.batches.size() == 1);
  CHECK(plan.batches[0] == std::vector<Instruction>{{.kind = Kind::kRun, .index = 0},
                                                    {.kind = Kind::kRun, .index = 2},
                                                    {.kind = Kind::kBody, .index = 3}});
  REQUIRE(plan.program.size() == 3);
  CHECK(plan.program[0].kind == Kind::kBatch);
  CHECK(results.counts.kernels[0] == 3);
  CHECK(results.counts.batches == 1);
  CHECK(results.counts.batched_nodes == 3);
  Plan damaged = plan;
  damaged.batches[0].push_back({.kind = Kind::kRun, .index = 1});
  CHECK_FALSE(verify_plan(p.graph, damaged, fused_options()).ok());
}

TEST_CASE("batches: a plan is not resized to calls that are too large for its batches") {
  const auto make = [](Fusable& p, int64_t rows) {
    const BufferId x = p.input(6 * rows), bias = p.input(6);
    for (int i = 0; i < 2; ++i) {
      const BufferId out = p.empty(6 * rows);
      p.add(test_ops().product, {p.row(bias), p.matrix(x, Access::kRead, rows), p.matrix(out, Access::kDefine, rows)});
      p.escape(out);
    }
  };
  Fusable small;
  make(small, 4);
  Plan plan = small.plan(fused_options());
  REQUIRE(plan.batches.size() == 1);
  // Graphs that are compared have one table of windows.
  for (const int64_t rows : {5, 60000}) {
    Graph now = small.graph;
    for (Operand& operand : now.operands) {
      const Window& window = small.windows[operand.window];
      if (window.rank != 2) continue;
      const std::vector<int64_t> sizes = {rows, 6};
      operand.window = small.windows.intern_contiguous(window.dtype, sizes);
      now.buffers[operand.buffer].bytes = static_cast<uint64_t>(24 * rows);
    }
    Plan resized = plan;
    CHECK(resize_plan(small.graph, now, fused_options(), resized) == (rows == 5));
  }
}

TEST_CASE("batches: a product does not move before what it depends on") {
  for (const int what : {0, 1, 2}) {
    Fusable p;
    const BufferId x = p.input(24), bias = p.input(6), other = p.input(6);
    const BufferId q = p.product(bias, x);
    // The bias, the shared operand, or something else changes between the products.
    p.add(test_ops().matmul, {p.read(q), p.update(what == 0 ? bias : what == 1 ? x : other)});
    p.escape(p.matmul(p.product(bias, x)));
    p.escape(q);
    p.check();
    CHECK(p.plan(fused_options()).batches.size() == (what == 2 ? 1u : 0u));
  }
}

TEST_CASE("batches: calls that cannot run together run one by one, and each has its own error") {
  Fusable p;
  const BufferId x = p.input(24), bias = p.input(6), y = p.input(6);
  const BufferId q = p.product(bias, x);
  const BufferId k = p.product(y, x);
  p.escape(q);
  p.escape(k);
  const Plan plan = p.plan(fused_options());
  REQUIRE(plan.batches.size() == 1);
  const Results expected = p.interpret();
  backend::FaultDevice faulty(*test_devices()[0]);
  Results got;
  got.bindings = p.bind(test_devices());
  Executor executor({&faulty, nullptr});
  faulty.fail(backend::FaultKind::kAllocation, 1, backend::FaultDuration::kOnce);
  got.status = executor.run(p.graph, plan, p.pointers(got.bindings), got.counts);
  p.read_values(got, test_devices());
  CHECK(got.status.ok());
  CHECK(got.counts.batches == 0);
  CHECK(same_values(p, got, expected));
}

}  // namespace hetero::graph::testing
