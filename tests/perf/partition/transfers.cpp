// What small copies gain by being one transfer: the time with them over that with each by itself, and over what no order could better.

#include <algorithm>
#include <string>
#include <vector>

#include "graph/cost/simulate.h"
#include "graph/plan/pipeline.h"
#include "tests/graph/fixtures/program.h"
#include "tests/perf/partition/rows.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;

constexpr double kBar = 1.1;
constexpr int kLayers = 32;
constexpr int64_t kWidth = 1024;  // floats

// Layers whose biases, scales and shifts lie on the CPU, as where they are made anew for each call.
void add_layers(Program& program) {
  BufferId x = program.input(kWidth, 1u << kAccelerator);
  for (int layer = 0; layer < kLayers; ++layer) {
    const Operand value = program.read(x);
    const Operand bias = program.read(program.input(kWidth));
    const Operand scale = program.read(program.input(kWidth));
    const Operand shift = program.read(program.input(kWidth));
    x = program.define(test_ops().pointwise, kWidth, {value, bias, scale, shift});
  }
  program.escape(x);
}

double simulated(const Graph& graph, const PlanOptions& options) {
  Plan plan;
  make_plan(graph, options, plan);
  Simulation simulation;
  simulate(graph, plan, CostModel(options), simulation);
  return simulation.seconds;
}

// Nothing runs before the first copy is there; the link moves all bytes, and the accelerator runs all layers.
double bound(const Graph& graph, const PlanOptions& options) {
  const CostModel costs(options);
  double bytes = 0;
  double tasks = 0;
  for (const Buffer& buffer : graph.buffers) {
    if (buffer.valid_on == 1u << backend::kCpu) bytes += static_cast<double>(buffer.bytes);
  }
  for (const Node& node : graph.nodes) tasks += costs.node_seconds(graph, node, kAccelerator);
  const double first =
      costs.copy_seconds(static_cast<double>(3 * kWidth) * sizeof(float), backend::kCpu, backend::kAccelerator);
  return std::max(costs.copy_seconds(bytes, backend::kCpu, backend::kAccelerator), first + tasks);
}

}  // namespace

void transfer_rows(Table& table, const Machines& machines) {
  Program program;
  add_layers(program);
  std::string faster;
  std::string over;
  double worst = 0;
  for (const Machine& machine : machines) {
    PlanOptions options = machine.options();
    options.policy = Policy::kAccelerator;
    const double seconds = simulated(program.graph, options);
    const double least = bound(program.graph, options);
    options.join_copies = false;
    const double apart = simulated(program.graph, options);
    const char* const comma = faster.empty() ? "" : ", ";
    faster += comma + text("%.2f (%.0f us, not %.0f)", apart / seconds, 1e6 * seconds, 1e6 * apart);
    over += comma + text("%.3f", seconds / least);
    worst = std::max(worst, seconds / least);
  }
  table.note("times as fast with small copies as one transfer, 96 vectors of 4 KiB for 32 layers, each machine",
             faster);
  table.at_most("&nbsp; time over the larger of all bytes by the link, and the first copy and all layers", over, worst,
                kBar);
}

}  // namespace hetero::graph::testing
