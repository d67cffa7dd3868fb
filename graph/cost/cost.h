// Cost: the expected times of nodes and copies.
//
// A time that was measured often enough on this machine counts (graph/cost/history.h). Before that
// it is a guess by a roofline: the larger of arithmetic and memory traffic, each at the device's
// rate, as the operator's class and windows give them. The fixed cost of a call or a copy is added.
// Rates that a device does not know are guesses too.
// Source: S. Williams et al., "Roofline", 2009.
//
// Thread safety: plain data.

#pragma once

#include "graph/ir/graph.h"
#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"

namespace hetero::graph {

struct Work {
  double flops = 0;
  double bytes = 0;     // touched
  double elements = 0;  // of the largest window: what could be computed at the same time
  bool half = false;    // the arithmetic is that of 2-byte floats
};
// What one look at all elements moves.
double bytes_seen(const Window& window);
Work work_of(const Graph& graph, const Node& node);
// A fused kernel computes what its members do, and touches what it loads and stores.
Work work_of(const Graph& graph, const FusedGroup& group);
// A run, a body or a fused kernel; others are no work.
Work work_of(const Graph& graph, const Plan& plan, const Instruction& task);
// Of the copies from `position` to before `end`, which are one transfer.
double bytes_of(const Graph& graph, const Plan& plan, size_t position, size_t end);

// A copy of no more bytes that the program has made itself does not wait for others: it goes by an
// urgent queue.
inline constexpr uint64_t kUrgentBytes = uint64_t{256} << 10;

class CostModel {
 public:
  explicit CostModel(const PlanOptions& options)
      : machine_(options.machine), history_(options.history), slowness_(options.slowness) {}

  // Of one call.
  double run_seconds(const Work& work, backend::DeviceIndex device) const;
  double node_seconds(const Graph& graph, const Node& node, backend::DeviceIndex device,
                      Part part = Part::kWhole) const;
  double group_seconds(const Graph& graph, const FusedGroup& group, backend::DeviceIndex device) const;
  // Of what computes, there; 0 of others.
  double seconds_of(const Graph& graph, const Plan& plan, const Instruction& instruction,
                    backend::DeviceIndex device) const;
  // The share of the device that a call keeps busy while it takes so long: what it needs of the
  // device at its full rate, and no less than the part of it that its elements fill. What it waits
  // for, as for its launch, keeps nothing busy. `slowness`: of the device, 1 as it is described.
  double utilization(const Work& work, double seconds, backend::DeviceIndex device, double slowness) const;
  // How many times as slow the accelerator is as its description, launches included, by what
  // kernels beside each other took: in the program, else in all that were seen, else 1. No kernel
  // that runs alone tells how much of its time it only waits. See fit_slowness in
  // graph/cost/simulate.h.
  double slowness() const;
  static uint64_t slowness_key();
  // Between two devices; by way of the host where they have no link.
  double copy_seconds(double bytes, backend::DeviceIndex from, backend::DeviceIndex to) const;
  // Notes what a copy has taken, beside whatever else was on its way.
  void learn_copy(double bytes, backend::DeviceIndex from, backend::DeviceIndex to, double seconds,
                  CostHistory& history) const;
  // The most bytes that small copies should have together as one transfer: their time on the link
  // is then no more than what one more transfer costs, so nobody waits longer than for a second
  // one. 0 where a copy costs nothing however small it is. By destination: over its link from the
  // host, or over that of the accelerators' to the host for which it is least.
  uint64_t transfer_bytes(backend::DeviceIndex to) const;

 private:
  double latency(backend::DeviceIndex device) const;
  // Bytes per second of a link, and a guess where it is not known.
  double copy_bandwidth(backend::DeviceIndex from, backend::DeviceIndex to) const;
  double copy_latency(backend::DeviceIndex from, backend::DeviceIndex to) const;
  double guessed_copy_seconds(double bytes, backend::DeviceIndex from, backend::DeviceIndex to) const;
  uint64_t transfer_bytes(backend::DeviceIndex from, backend::DeviceIndex to) const;
  // Without latency.
  double full_rate_seconds(const Work& work, backend::DeviceIndex device) const;

  const backend::Machine machine_;
  const CostHistory* history_;
  double slowness_;  // 0: not known of the program
};

}  // namespace hetero::graph
