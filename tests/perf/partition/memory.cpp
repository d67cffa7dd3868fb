// Size of the arena over its lower bound: for transformers' temporaries, and for Google's hard instances.

#include <algorithm>
#include <string>

#include "graph/plan/interval_packing.h"
#include "tests/graph/fixtures/steady.h"
#include "tests/graph/placement/hard_instances.h"
#include "tests/perf/partition/model.h"
#include "tests/perf/partition/rows.h"
#include "tests/perf/partition/thread_time.h"

namespace hetero::graph::testing {
namespace {

constexpr uint64_t kAlignment = 64;

double over_bound(const Plan& plan, backend::DeviceIndex device) {
  return static_cast<double>(plan.arena_bytes[device]) / static_cast<double>(plan.arena_lower_bound[device]);
}

void transformer_row(Table& table, const char* where, const PlanOptions& options, backend::DeviceIndex device,
                     bool judged) {
  std::string figures;
  Ratios ratios;
  for (const int64_t tokens : {1, 7, 64, 333, 2048}) {
    Model model(kUneven, tokens, 4096);
    const Plan plan = plan_until_steady(model.graph, options).plan;
    ratios.add(over_bound(plan, device));
    figures += text("%s%.4f", figures.empty() ? "" : ", ", over_bound(plan, device));
  }
  const std::string what =
      text("memory plan over its lower bound, transformer of 1, 7, 64, 333, 2,048 tokens, %s", where);
  judged ? table.at_most(what, figures, ratios.worst, 1.0) : table.note(what, figures);
}

}  // namespace

void memory_rows(Table& table) {
  PlanOptions options;
  options.own_block_bytes = options.least_own_block_bytes = UINT64_MAX;
  transformer_row(table, "on the CPU", options, backend::kCpu, true);
  options.machine.add({});
  options.policy = Policy::kAccelerator;
  transformer_row(table, "on the accelerator with several compute queues", options, backend::kAccelerator, false);
  options.compute_queues = 1;
  transformer_row(table, "on the accelerator", options, backend::kAccelerator, true);

  Ratios ratios;
  double slowest = 0;
  IntervalPacking packing;
  for (const HardInstance& instance : hard_instances()) {
    const double begin = thread_seconds();
    packing.pack(instance.intervals, kAlignment);
    slowest = std::max(slowest, thread_seconds() - begin);
    ratios.add(static_cast<double>(packing.total_bytes()) / static_cast<double>(packing.lower_bound()));
  }
  table.at_most(text("the same, MiniMalloc's %d hard instances: worst", ratios.count),
                text("%.4f, mean %.4f", ratios.worst, ratios.mean()), ratios.worst, 1.05);
  table.at_most("&nbsp; the slowest, ms", text("%.0f", 1e3 * slowest), 1e3 * slowest, 1000);
}

}  // namespace hetero::graph::testing
