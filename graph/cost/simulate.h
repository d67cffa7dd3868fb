// simulate: when each instruction of a program begins and ends, by a cost model: a discrete-event
// simulation in the order of submission.
//
// The rules are those of running (queue_run.h): a queue runs its instructions in order; the host
// submits one after the other, and runs those of its own queue before it goes on; an event holds a
// queue up until what was recorded has run; tasks of several compute queues share the accelerator
// by their utilization (backend/device/compute_engine.h; CostModel); copies that are one transfer
// have one latency. So one walk over the program is the simulation.
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
  std::vector<Span> spans;  // per instruction; a transfer's is that of its first copy, and the others have none
  std::array<double, kMaxQueues> busy{};    // per queue: how long it runs or copies
  std::array<double, kMaxQueues> waited{};  // per queue: between the first and the last of that, how long it does not
  double seconds = 0;                       // of the whole
};

// REQUIRES: the plan is legal.
void simulate(const Graph& graph, const Plan& plan, const CostModel& costs, Simulation& simulation);

// The seconds of the whole, alone. REQUIRES: as above.
double simulated_seconds(const Graph& graph, const Plan& plan, const PlanOptions& options);

// The CostModel::slowness with which the accelerator's kernels, each beginning when it did, would
// have ended when they did. The present one where it is as good as any; none where no value
// explains it. REQUIRES: `spans` are measured, per instruction, and `costs` knows what each kernel
// takes alone.
std::optional<double> fit_slowness(const Graph& graph, const Plan& plan, const CostModel& costs,
                                   std::span<const Span> spans);

// Whether what runs where may stay as it was decided for other sizes, by the seconds of the plan
// then and with the sizes of now: not so different that what took little may be something else.
bool keeps_placement(double seconds_then, double seconds_now);

// "predicted: 0.00123 s; cpu compute: busy 0.001 s, waits 0 s; ..."
std::string to_string(const Simulation& simulation);

}  // namespace hetero::graph
