// Steps of models that do not fit: how near streaming comes to the least it can take, and how it compares with other ways to run them.

#include <algorithm>
#include <initializer_list>
#include <string>

#include "tests/graph/fixtures/steady.h"
#include "tests/perf/partition/hooks.h"
#include "tests/perf/partition/model.h"
#include "tests/perf/partition/rows.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;

struct Phase {
  const char* name;
  int64_t tokens;
  int64_t context;
};
// Decoding reads each weight for one token; 16,384 tokens keep an accelerator busy for longer than the weights of a layer take to come.
constexpr Phase kDecode{"decode", 1, 2048};
constexpr Phase kPrefill{"prefill", 16384, 16384};

Steady planned(const Machine& machine, const ModelShape& shape, const Phase& phase, double share, Policy policy) {
  Model model(shape, phase.tokens, phase.context);
  PlanOptions options = machine.options();
  options.machine[1].bytes = budget_for(model, share, options);
  options.policy = policy;
  return plan_until_steady(model.graph, options);
}

// How much of the weights is streamed, in percent.
using Shares = std::initializer_list<int>;
constexpr Shares kShares{25, 50, 75, 100};
constexpr Shares kMiddleShares{25, 50, 75};

// Over max(compute, bytes / bandwidth), for so much streamed.
void streaming_row(Table& table, const Machine& machine, const ModelShape& shape, const char* layers,
                   const Phase& phase, double bar, Shares shares = kShares) {
  std::string figures;
  Ratios ratios;
  for (const int streamed : shares) {
    const Steady steady = planned(machine, shape, phase, 1 - streamed / 100.0, Policy::kAccelerator);
    const double compute = steady.simulation.busy[queue_id(kAccelerator, backend::QueueKind::kCompute)];
    const double copies = static_cast<double>(steady.streamed_bytes) / machine.sim.h2d_bandwidth;
    ratios.add(steady.simulation.seconds / std::max(compute, copies));
    const double weights = static_cast<double>(Model(shape, 1, 1).weight_bytes());
    figures +=
        text("%s%.4f (%.0f %%%s)", figures.empty() ? "" : ", ", steady.simulation.seconds / std::max(compute, copies),
             100 * static_cast<double>(steady.streamed_bytes) / weights, compute > copies ? ", compute" : "");
  }
  table.at_most(text("streaming over max(compute, copies), %s, %s, %s", layers, phase.name, machine.name.c_str()),
                figures, ratios.worst, bar);
}

// The least that a step can take where the CPU computes with a part of what is streamed, in turn with the accelerator, while the link copies the rest.
double least_shared(const Machine& machine, const Steady& streaming) {
  const auto bytes = static_cast<double>(streaming.streamed_bytes);
  const double copies = bytes / machine.sim.h2d_bandwidth;
  const double there = streaming.simulation.busy[queue_id(kAccelerator, backend::QueueKind::kCompute)];
  const double longer = bytes / machine.cpu.memory_bandwidth - bytes / machine.sim.memory_bandwidth;
  const double share = std::clamp((copies - there) / (copies + longer), 0.0, 1.0);
  return there + share * longer;
}

void hook_row(Table& table, const Machine& machine, const ModelShape& shape, const char* layers, Shares shares) {
  std::string figures;
  double least = 1e300;
  for (const int streamed : shares) {
    const double share = 1 - streamed / 100.0;
    Model model(shape, kDecode.tokens, kDecode.context);
    PlanOptions options = machine.options();
    options.machine[1].bytes = budget_for(model, share, options);
    const double hooks = seconds_with_hooks(model, machine, options.machine[1].bytes);
    const double ours = plan_until_steady(model.graph, options).simulation.seconds;
    const Steady streaming = planned(machine, shape, kDecode, share, Policy::kAccelerator);
    least = std::min(least, hooks / ours);
    figures += text("%s%.1f (streaming only %.1f, possible %.1f)", figures.empty() ? "" : ", ", hooks / ours,
                    hooks / streaming.simulation.seconds, hooks / least_shared(machine, streaming));
  }
  table.at_least(
      text("times as fast as accelerate's hooks, re-created with %.1f GB/s from pageable memory, %s, decode, %d to "
           "%d %% streamed, %s",
           pageable_bandwidth(machine) / 1e9, layers, *shares.begin(), *(shares.end() - 1), machine.name.c_str()),
      figures, least, 5);
}

void fitting_row(Table& table, const Machines& machines) {
  std::string figures;
  double least = 1e300;
  for (const Machine& machine : machines) {
    for (const Phase& phase : {kDecode, kPrefill}) {
      const double all = planned(machine, kUneven, phase, 1.1, Policy::kAccelerator).simulation.seconds;
      const double ours = planned(machine, kUneven, phase, 1.1, Policy::kAuto).simulation.seconds;
      least = std::min(least, all / ours);
      figures += text("%s%.3f", figures.empty() ? "" : ", ", all / ours);
    }
  }
  table.at_least("where all fits: speed over all on the accelerator, decode and prefill of each machine", figures,
                 least, 0.98);
}

void better_row(Table& table, const Machine& machine, const Phase& phase) {
  std::string figures;
  double worst = 0;
  for (const int fits : {10, 25, 50, 75, 100}) {
    const double share = fits / 100.0;
    const double accelerator = planned(machine, kUneven, phase, share, Policy::kAccelerator).simulation.seconds;
    const double cpu = planned(machine, kUneven, phase, share, Policy::kCpu).simulation.seconds;
    const double ours = planned(machine, kUneven, phase, share, Policy::kAuto).simulation.seconds;
    const double ratio = ours / std::min(accelerator, cpu);
    worst = std::max(worst, ratio);
    figures += text("%s%.3f%s", figures.empty() ? "" : ", ", ratio, cpu < accelerator ? " (CPU)" : "");
  }
  table.at_most(text("time over the better of streaming and the CPU alone, 10 to 100 %% fit, %s, %s", phase.name,
                     machine.name.c_str()),
                figures, worst, 1.05);
}

}  // namespace

void streaming_rows(Table& table, const Machines& machines) {
  for (const Phase& phase : {kDecode, kPrefill}) {
    for (const Machine& machine : machines) streaming_row(table, machine, kEqual, "equal layers", phase, 1.02);
    for (const Machine& machine : machines) streaming_row(table, machine, kUneven, "uneven layers", phase, 1.05);
    for (const Machine& machine : machines)
      streaming_row(table, machine, kQwen14, "Qwen3-14B", phase, 1.03, kMiddleShares);
  }
}

void peer_rows(Table& table, const Machines& machines) {
  for (const Machine& machine : machines) {
    hook_row(table, machine, kUneven, "uneven layers", kShares);
    hook_row(table, machine, kQwen14, "Qwen3-14B", kMiddleShares);
  }
  fitting_row(table, machines);
  for (const Phase& phase : {kDecode, kPrefill}) {
    for (const Machine& machine : machines) better_row(table, machine, phase);
  }
}

}  // namespace hetero::graph::testing
