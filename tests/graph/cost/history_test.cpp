// What was measured: when it counts, what is passed over, and the file that keeps it.

#include "graph/cost/history.h"

#include <unistd.h>

#include <cstdio>

#include "graph/cost/cost.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/program.h"

namespace hetero::graph::testing {
namespace {

// A file of its own that goes with the test.
struct File {
  std::string path = "/tmp/hetero-history-" + std::to_string(getpid());
  ~File() { std::remove(path.c_str()); }
};

void measure(CostHistory& history) {
  for (uint64_t key = 1; key <= 20; ++key) {
    for (int i = 0; i < 5; ++i) history.add(key, static_cast<double>(key) * (1 + 0.01 * i));
  }
  history.add(99, 1.0);
}

}  // namespace

TEST_CASE("history: an entry counts after enough measurements") {
  CostHistory history;
  for (uint32_t i = 0; i < CostHistory::kEnough; ++i) {
    CHECK(history.find(1) == 0);
    history.add(1, 2e-3);
  }
  CHECK(history.find(1) == Approx(2e-3));
  CHECK(history.find(2) == 0);
  for (const double bad : {0.0, -1.0, 0.0 / 0.0, 1.0 / 0.0}) history.add(1, bad);
  CHECK(history.find(1) == Approx(2e-3));
}

TEST_CASE("history: what copies take is learned by their size and direction") {
  using backend::kAccelerator;
  using backend::kCpu;
  CostHistory history;
  PlanOptions options;
  options.machine.add({});
  options.machine[1].rates = {.copy_bandwidth = 1e9, .readback_bandwidth = 1e9, .copy_latency = 1e-5};
  options.history = &history;
  const CostModel costs(options);
  const double guess = costs.copy_seconds(1 << 20, backend::kCpu, backend::kAccelerator);
  CHECK(guess == Approx(1e-5 + (1 << 20) / 1e9));
  const auto learn = [&](double bytes, double times) {
    const double seconds = 1e-5 + bytes / 1e9;
    for (uint32_t i = 0; i < CostHistory::kEnough; ++i)
      costs.learn_copy(bytes, kCpu, kAccelerator, times * seconds, history);
  };
  learn(1 << 20, 3);
  CHECK(costs.copy_seconds(1 << 20, backend::kCpu, backend::kAccelerator) == Approx(3 * guess));
  // Also for others of about that size, and no others.
  CHECK(costs.copy_seconds(1.9 * (1 << 20), backend::kCpu, backend::kAccelerator) ==
        Approx(3 * (1e-5 + 1.9 * (1 << 20) / 1e9)));
  CHECK(costs.copy_seconds(1 << 20, backend::kAccelerator, backend::kCpu) == Approx(guess));
  CHECK(costs.copy_seconds(1 << 10, backend::kCpu, backend::kAccelerator) == Approx(1e-5 + (1 << 10) / 1e9));
  learn(1, 2);
  CHECK(costs.copy_seconds(1, backend::kCpu, backend::kAccelerator) == Approx(2e-5).epsilon(1e-3));
  CHECK(costs.copy_seconds(0, backend::kCpu, backend::kAccelerator) == 0);
}

TEST_CASE("history: outliers are passed over, a change is not") {
  CostHistory history;
  for (int i = 0; i < 10; ++i) history.add(1, 1 + 0.01 * (i % 3));
  const uint64_t before = history.version();
  history.add(1, 50);
  history.add(1, 40);
  CHECK(history.find(1) == Approx(1.01).epsilon(0.02));
  history.add(1, 1);  // they were not in a row
  history.add(1, 50);
  CHECK(history.find(1) == Approx(1.01).epsilon(0.02));
  CHECK(history.version() == before);
  for (int i = 0; i < 10; ++i) history.add(1, 3);
  CHECK(history.find(1) == Approx(3));
  CHECK(history.version() > before);
}

TEST_CASE("history: is kept in a file, and one with lines that are no costs is refused whole") {
  const File file;
  const backend::CacheFile kept(file.path, CostHistory::kKind, "cpu + gpu");
  CostHistory history;
  measure(history);
  REQUIRE(history.save(kept).ok());
  CostHistory again;
  REQUIRE(again.load(kept).ok());
  CHECK(again.size() == 20);
  for (uint64_t key = 1; key <= 20; ++key) CHECK(again.find(key) == Approx(history.find(key)));

  const std::string text = kept.read().value();
  for (const char* const line : {"costs", "1 2 3", "0000000000000001 5 -1 0", "0000000000000001 1 1 0"}) {
    REQUIRE(kept.write(text + line + '\n').ok());
    CostHistory other;
    CHECK(other.load(kept).error_class() == ErrorClass::kStorage);
    CHECK(other.size() == 0);
  }
  CHECK_FALSE(CostHistory().load({"/proc/none/file", CostHistory::kKind, ""}).ok());
  CHECK(history.save({"/proc/none/file", CostHistory::kKind, ""}).error_class() == ErrorClass::kStorage);
}

TEST_CASE("history: a key is the same for the same operator, windows and device only") {
  Program p;
  const BufferId x = p.input(64);
  const BufferId y = p.input(32);
  p.define(test_ops().matmul, 64, {p.read(x)});
  p.define(test_ops().matmul, 64, {p.read(x)});
  p.define(test_ops().matmul, 32, {p.read(y)});
  p.define(test_ops().pointwise, 64, {p.read(x)});
  const auto key = [&](size_t n, backend::DeviceIndex device = backend::kCpu) {
    return cost_key(p.graph, p.graph.nodes[n], device);
  };
  CHECK(key(0) == key(1));
  CHECK(key(0) != key(2));
  CHECK(key(0) != key(3));
  CHECK(key(0) != key(0, backend::kAccelerator));
}

TEST_CASE("history: what was measured replaces the guess") {
  Program p;
  const BufferId x = p.input(64);
  p.escape(p.define(test_ops().matmul, 64, {p.read(x)}));
  PlanOptions options = both_options();
  CHECK(p.plan(options).placements[0].device == backend::kCpu);
  CostHistory history;
  options.history = &history;
  for (int i = 0; i < 5; ++i) {
    history.add(cost_key(p.graph, p.graph.nodes[0], backend::kCpu), 1.0);
    history.add(cost_key(p.graph, p.graph.nodes[0], backend::kAccelerator), 0.1);
  }
  const Plan plan = p.plan(options);
  const Placement& placement = plan.placements[0];
  CHECK(placement.device == backend::kAccelerator);
  CHECK(placement.predicted_seconds == Approx(0.1));
  CHECK(placement.elsewhere_seconds == Approx(1.0));
  // What a device that simulates time is told stays what its figures say, also in the plan's text.
  options.history = nullptr;
  const double modelled = CostModel(options).node_seconds(p.graph, p.graph.nodes[0], backend::kAccelerator);
  REQUIRE(modelled < 0.01);
  for (const Instruction& instruction : plan.program) {
    if (instruction.kind != Instruction::Kind::kRun) continue;
    CHECK(predicted_seconds(p.graph, plan, instruction) == Approx(0.1));
    CHECK(modelled_seconds(p.graph, plan, instruction) == Approx(modelled));
  }
  const std::string text = to_string(plan);
  CHECK(text.find("s, modelled ") != std::string::npos);
  const Result<Plan> parsed = parse_plan(text);
  REQUIRE(parsed.ok());
  CHECK(parsed.value().placements == plan.placements);
  std::string wrong = text;
  wrong.replace(wrong.find("s, modelled "), 12, "s, modelled -");
  CHECK_FALSE(parse_plan(wrong).ok());
}

}  // namespace hetero::graph::testing
