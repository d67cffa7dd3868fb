// How long planning takes, in time of the processor: some 1,000 nodes, the costs guessed or known.

#include <algorithm>
#include <vector>

#include "graph/cost/cost.h"
#include "graph/cost/history.h"
#include "graph/plan/pipeline.h"
#include "tests/perf/partition/model.h"
#include "tests/perf/partition/rows.h"
#include "tests/perf/partition/thread_time.h"

namespace hetero::graph::testing {
namespace {

constexpr int kLayers = 59;  // of 17 nodes: 1,003
constexpr int kRounds = 5;

// Of the first plan, when all weights are in host memory.
double median_ms(const Graph& graph, const PlanOptions& options) {
  std::vector<double> times;
  Plan plan;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = thread_seconds();
    make_plan(graph, options, plan);
    times.push_back(1e3 * (thread_seconds() - begin));
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// As if every node had been measured on each device and had taken what was predicted.
void fill(const Graph& graph, const PlanOptions& options, CostHistory& history) {
  const CostModel costs(options);
  for (const Node& node : graph.nodes) {
    for (backend::DeviceIndex device = 0; device < options.machine.size(); ++device) {
      for (uint32_t i = 0; i < CostHistory::kEnough; ++i) {
        history.add(cost_key(graph, node, device), costs.node_seconds(graph, node, device));
      }
    }
  }
}

}  // namespace

void planning_rows(Table& table, const Machine& machine) {
  ModelShape shape = kUneven;
  shape.layers = kLayers;
  Model model(shape, 1, 2048);
  for (const bool cached : {false, true}) {
    for (const bool fits : {true, false}) {
      PlanOptions options = machine.options();
      if (!fits) options.machine[1].bytes = budget_for(model, 0.25, options);
      CostHistory history;
      if (cached) {
        fill(model.graph, options, history);
        options.history = &history;
      }
      const double ms = median_ms(model.graph, options);
      table.at_most(text("planning %zu nodes, %s, costs %s, ms", model.graph.nodes.size(),
                         fits ? "all fit" : "a quarter fits", cached ? "known" : "guessed"),
                    text("%.1f", ms), ms, cached ? 50 : 1000);
    }
  }
}

}  // namespace hetero::graph::testing
