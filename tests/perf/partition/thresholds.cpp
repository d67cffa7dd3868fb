// The planner's search over offloading by thresholds (graph/placement/thresholds.h): the time of a
// model's step by the rules, at their usual figures, over its time by default.

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/graph/fixtures/steady.h"
#include "tests/perf/partition/model.h"
#include "tests/perf/partition/rows.h"

namespace hetero::graph::testing {
namespace {

// The search loses nowhere, and wins on the average.
constexpr double kLeastBar = 1.0;
constexpr double kMeanBar = 2.0;

struct Step {
  const char* name;
  ModelShape shape;
  int64_t tokens;
  int64_t context;
};
// A model that a CPU may run as fast.
constexpr ModelShape kSmall{.layers = 64, .hidden = 160, .query = 256, .key = 32, .inner = 800};
constexpr Step kSteps[] = {
    {"uneven layers, decode", kUneven, 1, 2048}, {"uneven layers, prefill", kUneven, 16384, 16384},
    {"equal layers, decode", kEqual, 1, 2048},   {"equal layers, prefill", kEqual, 16384, 16384},
    {"small layers, decode", kSmall, 1, 512},    {"small layers, prefill", kSmall, 512, 512}};

double seconds_of(const Machine& machine, const Step& step, double share, Policy policy) {
  Model model(step.shape, step.tokens, step.context);
  PlanOptions options = machine.options();
  options.machine[1].bytes = budget_for(model, share, options);
  options.policy = policy;
  return plan_until_steady(model.graph, options).simulation.seconds;
}

}  // namespace

void threshold_rows(Table& table, const Machines& machines) {
  Ratios all;
  double least = 1e300;
  for (const Step& step : kSteps) {
    for (const Machine& machine : machines) {
      std::string figures;
      Ratios of_row;
      for (const int fits : {10, 25, 50, 75, 110, 200}) {
        const double share = fits / 100.0;
        const double ratio =
            seconds_of(machine, step, share, Policy::kThresholds) / seconds_of(machine, step, share, Policy::kAuto);
        least = std::min(least, ratio);
        all.add(std::log(ratio));
        of_row.add(std::log(ratio));
        figures += text("%s%.2f", figures.empty() ? "" : ", ", ratio);
      }
      table.note(text("times as fast as thresholds, 10 to 200 %% fit, %s, %s: geometric mean", step.name,
                      machine.name.c_str()),
                 text("%.2f (%s)", std::exp(of_row.mean()), figures.c_str()));
    }
  }
  const double mean = std::exp(all.mean());
  table.at_least(text("times as fast as thresholds: geometric mean of all %d", all.count), text("%.2f", mean), mean,
                 kMeanBar);
  table.at_least("times as fast as thresholds: the least of all", text("%.3f", least), least, kLeastBar);
}

}  // namespace hetero::graph::testing
