// Cost: what nodes and copies are expected to take, before anything was measured.
//
// A roofline ("Roofline", Williams et al. 2009): the larger of arithmetic and memory traffic, each at the device's rate, which the operator's class and
// windows give; a launch on a device that is not the host takes its latency beside that. A rate that a device does not know is a guess.
//
// Thread safety: plain data.

#pragma once

#include "graph/graph.h"
#include "graph/plan.h"

namespace hetero::graph {

struct Work {
  double flops = 0;
  double bytes = 0;  // touched
};
// What one look at all elements moves.
double bytes_seen(const Window& window);
Work work_of(const Graph& graph, const Node& node);

class CostModel {
 public:
  explicit CostModel(const PlanOptions& options) : cpu_(options.cpu), accelerator_(options.accelerator) {}

  double launch_seconds() const;
  // Launch included.
  double run_seconds(const Work& work, backend::DeviceIndex device) const;
  // Between the devices, one way.
  double copy_seconds(double bytes) const;

 private:
  backend::Capabilities cpu_;
  backend::Capabilities accelerator_;
};

}  // namespace hetero::graph
