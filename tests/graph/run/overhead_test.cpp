// What planning and running cost per node, beside the kernels. Printed, never asserted.

#include <chrono>
#include <cstdio>

#include "graph/fusion/fusion.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

template <typename Work>
double nanoseconds(int repetitions, Work work) {
  double best = 1e30;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
  }
  return best;
}

// Its kernel does nothing.
OpId nothing() {
  static const OpId op =
      op_table().add({.name = "test::nothing", .op_class = OpClass::kPointwise, .kernel = [](const Invocation&) {}});
  return op;
}

void print_overhead(const char* what, OpId op) {
  constexpr int kNodes = 1000;
  Program p;
  const BufferId x = p.input(16);
  const BufferId y = p.input(16);
  // Bound for run after run.
  p.escape(x);
  p.escape(y);
  BufferId value = x;
  for (int i = 0; i < kNodes; ++i) value = p.define(op, 16, {p.read(value), p.read(y)});
  p.escape(value);
  const PlanOptions options = cpu_options();
  Plan plan;
  const double planning = nanoseconds(200, [&] { make_plan(p.graph, options, plan); });
  std::vector<Binding> bindings = p.bind(test_devices());
  const std::vector<Binding*> pointers = p.pointers(bindings);
  Executor executor({test_devices()[0], nullptr});
  RunCounts counts;
  const double running = nanoseconds(200, [&] {
    REQUIRE(executor.run(p.graph, plan, pointers, counts).ok());
    bindings[value].blocks[0].reset();
  });
  std::printf("%s: planning %.1f ns, running %.1f ns per node\n", what, planning / kNodes, running / kNodes);
}

}  // namespace

TEST_CASE("overhead per node of a chain of 1,000 empty kernels", "[benchmark]") {
  const auto bring = [](const Invocation& call) {
    alignas(64) static char bytes[64];
    call.brought[2] = backend::Block::adopt(bytes, sizeof(bytes), nullptr, nullptr);
  };
  print_overhead("memory from the arena", nothing());
  print_overhead(
      "memory brought by the kernel",
      op_table().add(
          {.name = "test::bring_nothing", .op_class = OpClass::kPointwise, .brings_memory = true, .kernel = bring}));
}

TEST_CASE("overhead per node of 1,000 nodes in fused chains", "[benchmark]") {
  constexpr int kNodes = 1000;
  for (const int length : {1, 4, 16}) {
    Program p;
    const BufferId x = p.input(16);
    const BufferId y = p.input(16);
    p.escape(x);
    p.escape(y);
    BufferId value = x;
    for (int i = 0; i < kNodes; ++i) {
      value = p.define(i % (length + 1) == length ? nothing() : test_ops().map, 16, {p.read(value), p.read(y)});
    }
    p.escape(value);
    const PlanOptions options = fused_options();
    Plan plan;
    const double planning = nanoseconds(200, [&] { make_plan(p.graph, options, plan); });
    std::vector<Binding> bindings = p.bind(test_devices());
    const std::vector<Binding*> pointers = p.pointers(bindings);
    Executor executor({test_devices()[0], nullptr});
    RunCounts counts;
    const double running = nanoseconds(200, [&] {
      REQUIRE(executor.run(p.graph, plan, pointers, counts).ok());
      bindings[value].blocks[0].reset();
    });
    double gathering = 0;
    gathering = nanoseconds(200, [&] {
      for (FusedGroup& group : plan.groups) REQUIRE(gather_numbers(p.graph, group, group.numbers));
    });
    std::printf("chains of %d, fused: planning %.1f ns, running %.1f ns, gathering numbers %.1f ns per node\n", length,
                planning / kNodes, running / kNodes, gathering / kNodes);
  }
}

TEST_CASE("overhead per node of a static program of 1,000 empty kernels", "[benchmark]") {
  constexpr int kNodes = 1000;
  struct Case {
    const char* what;
    PlanOptions plan;
    bool segments;
  };
  const Case cases[] = {{"on the CPU", cpu_options(), false},
                        {"submitted to the simulated accelerator one by one", remote_options(), false},
                        {"submitted to the simulated accelerator in a segment", remote_options(), true}};
  for (const auto& [what, plan, segments] : cases) {
    Program p;
    const BufferId x = p.input(16);
    BufferId value = x;
    for (int i = 0; i < kNodes; ++i) value = p.define(nothing(), 16, {p.read(value), p.read(x)});
    p.escape(value);
    GraphExecutor::Options options = executor_options(plan);
    options.segments = segments;
    const auto executor = executor_of(model_of(save(p)), std::move(options));
    set_inputs(*executor, p);
    double best = 1e30;
    for (int i = 0; i < 100; ++i) {
      best = std::min(best, nanoseconds(1, [&] { REQUIRE(executor->Run().ok()); }));
      REQUIRE(executor->Wait().ok());
    }
    std::printf("static program, %s: Run %.1f ns per node\n", what, best / kNodes);
  }
}

TEST_CASE("cost of interning a known window", "[benchmark]") {
  WindowTable table;
  for (int64_t i = 0; i < 500; ++i) table.intern_contiguous(6, {{i, 8, 12, 64}});
  const int64_t sizes[] = {77, 8, 12, 64};
  const int64_t strides[] = {8 * 12 * 64, 12 * 64, 64, 1};
  WindowId last = 0;
  const double time = nanoseconds(200, [&] {
    for (int i = 0; i < 1000; ++i) last += table.intern(6, sizes, strides, 0);
  });
  std::printf("intern, rank 4: %.1f ns\n", time / 1000);
  CHECK(last != 0);
}

}  // namespace hetero::graph::testing
