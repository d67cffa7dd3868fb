// What simulate() predicts of programs against what they take on a SimDevice by its virtual clock, as predicted or with durations that are not.

#include <algorithm>
#include <random>
#include <stdexcept>

#include "backend/cpu/cpu_device.h"
#include "graph/plan/pipeline.h"
#include "tests/graph/fixtures/steady.h"
#include "tests/perf/partition/bound.h"
#include "tests/perf/partition/model.h"
#include "tests/perf/partition/rows.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr int kRandomPrograms = 100;
// Transformers that are really run are a 32nd as wide: weights and links a 1,024th, and arithmetic a 32,768th, of what they were.
constexpr ModelShape kNarrow{.layers = 64, .hidden = 160, .query = 256, .key = 32, .inner = 800};
constexpr double kNarrower = 32;

// The larger over the smaller: how far a prediction is off, either way.
double apart(double a, double b) { return std::max(a, b) / std::min(a, b); }

double measured_seconds(const Graph& graph, const Plan& plan, const backend::SimOptions& options, RunCounts& counts) {
  static backend::CpuDevice& cpu = *new backend::CpuDevice;
  auto sim = backend::SimDevice::create(options);
  if (!sim.ok()) throw std::runtime_error(sim.status().message());
  const Devices devices{&cpu, sim.value().get()};
  const Bound bound(graph, devices);
  Executor executor(devices);
  RunTimes times;
  executor.begin(graph, plan, bound.pointers(), counts, &times);
  executor.go_on(nullptr);
  if (const Status status = executor.end(); !status.ok()) throw std::runtime_error(status.message());
  return times.seconds;
}

// A program, planned; `sim` as it was planned for.
template <typename Function>
void for_each_random(Function function) {
  std::mt19937 random(33);
  const backend::SimOptions sim{.d2h_bandwidth = 10e9, .copy_latency = 2e-6};
  Machine machine{.name = "", .sim = sim, .cpu = {}};
  for (int i = 0; i < kRandomPrograms; ++i) {
    Program program;
    make_random(program, random, 10 + i % 50, true);
    PlanOptions options = machine.options();
    options.policy = i % 3 == 0 ? Policy::kAuto : Policy::kMixed;
    if (i % 2 == 1) options.machine[1].bytes = 4096 + 256 * static_cast<uint64_t>(i);
    Plan plan;
    make_plan(program.graph, options, plan);
    if (uses_host_only(plan)) continue;
    Simulation simulation;
    simulate(program.graph, plan, CostModel(options), simulation);
    function(program.graph, plan, simulation, sim);
  }
}

template <typename Function>
void for_each_transformer(const Machines& machines, Function function) {
  for (const Machine& wide : machines) {
    const Machine machine = wide.slower(kNarrower * kNarrower, kNarrower * kNarrower * kNarrower);
    for (const int64_t tokens : {1, 512}) {
      for (const double share : {0.0, 0.25, 0.5, 1.1}) {
        Model model(kNarrow, tokens, 512);
        PlanOptions options = machine.options();
        options.machine[1].bytes = budget_for(model, share, options);
        const Steady steady = plan_until_steady(model.graph, options);
        if (uses_host_only(steady.plan)) continue;
        function(model.graph, steady.plan, steady.simulation, machine.sim);
      }
    }
  }
}

class Comparison {
 public:
  explicit Comparison(double spread) : spread_(spread) {}

  void operator()(const Graph& graph, const Plan& plan, const Simulation& simulation, backend::SimOptions sim) {
    sim.duration_spread = spread_;
    sim.schedule_seed = spread_ > 0 ? 1 + static_cast<uint64_t>(ratios_.count) : 0;
    RunCounts counts;
    const double seconds = measured_seconds(graph, plan, sim, counts);
    ratios_.add(apart(seconds, simulation.seconds));
  }

  void row(Table& table, const char* what) const {
    table.at_most(text("predicted against measured (virtual clock), %d %s%s", ratios_.count, what,
                       spread_ > 0 ? text(", durations spread by %.1f", spread_).c_str() : ""),
                  text("mean %.4f, worst %.4f", ratios_.mean(), ratios_.worst), ratios_.worst, 1.1);
  }

 private:
  const double spread_;
  Ratios ratios_;
};

}  // namespace

void prediction_rows(Table& table, const Machines& machines) {
  for (const double spread : {0.0, 0.1}) {
    Comparison random(spread);
    for_each_random([&](const auto&... program) { random(program...); });
    random.row(table, "random programs");
    Comparison transformers(spread);
    for_each_transformer(machines, [&](const auto&... program) { transformers(program...); });
    transformers.row(table, "transformer steps");
  }
}

}  // namespace hetero::graph::testing
