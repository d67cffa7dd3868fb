// simulate: predicts when each instruction of a program begins and ends, by a cost model.
//
// It is a discrete-event simulation in the order of submission, by the rules of execution
// (queue_run.h):
// - A queue runs its instructions in order.
// - The host submits one instruction after the other, and runs those of its own queue before it
//   goes on.
// - An event holds a queue up until what was recorded has run.
// - Tasks of several compute queues share the accelerator by their utilization
//   (backend/device/compute_engine.h, CostModel).
// - Copies that are one transfer have one latency.
// So one walk over the program is the simulation.
//
// Thread safety: pure function. A Simulation keeps its memory from call to call.

#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/cost/cost.h"

namespace hetero::graph {

struct Simulation {
  // Per instruction; a transfer's is that of its first copy, and the others have none.
  std::vector<Span> spans;
  std::array<double, kMaxQueues> busy{};  // per queue: how long it runs or copies
  // Per queue: between the first and the last of that, how long it does not.
  std::array<double, kMaxQueues> waited{};
  double seconds = 0;  // of the whole
};

// REQUIRES: the plan is legal.
void simulate(const Graph& graph, const Plan& plan, const CostModel& costs, Simulation& simulation);

// The seconds of the whole, alone. REQUIRES: as above.
double simulated_seconds(const Graph& graph, const Plan& plan, const PlanOptions& options);

// Fits CostModel::slowness: with it, the accelerator's kernels, each beginning when it did, end
// when they did. Returns the present value if it is as good as any, and none if no value explains
// the times.
// REQUIRES: `spans` are measured, per instruction, and `costs` knows what each kernel takes alone.
std::optional<double> fit_slowness(const Graph& graph, const Plan& plan, const CostModel& costs,
                                   std::span<const Span> spans);

// Whether a placement may stay for other sizes, by the seconds of the plan then and now. False if
// the times differ so much that cheap tasks may have become expensive ones.
bool keeps_placement(double seconds_then, double seconds_now);

// "predicted: 0.00123 s; cpu compute: busy 0.001 s, waits 0 s; ..."
std::string to_string(const Simulation& simulation);

}  // namespace hetero::graph
