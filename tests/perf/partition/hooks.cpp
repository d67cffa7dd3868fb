#include "tests/perf/partition/hooks.h"

#include <algorithm>

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;

uint64_t bytes_of(const Model& model, const Model::Layer& layer) {
  uint64_t bytes = 0;
  for (const BufferId weight : layer.weights) bytes += model.graph.buffers[weight].bytes;
  return bytes;
}

}  // namespace

double pageable_bandwidth(const Machine& machine) { return std::min(10e9, 0.46 * machine.sim.h2d_bandwidth); }

double seconds_with_hooks(const Model& model, const Machine& machine, uint64_t budget) {
  const CostModel costs(machine.options());
  double seconds = 0;
  for (const Node& node : model.graph.nodes) seconds += costs.node_seconds(model.graph, node, kAccelerator);

  uint64_t largest = 0;
  for (const Model::Layer& layer : model.layers) largest = std::max(largest, bytes_of(model, layer));
  uint64_t used = 0;
  bool full = false;
  for (const Model::Layer& layer : model.layers) {
    full = full || used + bytes_of(model, layer) + largest > budget;
    if (!full) {
      used += bytes_of(model, layer);
      continue;
    }
    for (const BufferId weight : layer.weights) {
      const auto bytes = static_cast<double>(model.graph.buffers[weight].bytes);
      seconds += machine.sim.copy_latency + bytes / pageable_bandwidth(machine);
    }
  }
  return seconds;
}

}  // namespace hetero::graph::testing
