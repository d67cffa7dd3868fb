#include "ops/run/program_log.h"

#include "backend/registry/registry.h"
#include "graph/cost/simulate.h"
#include "graph/report/describe.h"
#include "ops/memory/storage_memory.h"

namespace hetero::ops {
namespace {

constexpr size_t kLoggedPrograms = 64;

graph::Simulation simulated(const graph::Graph& graph, const graph::Plan& plan, const graph::PlanOptions& options) {
  graph::Simulation simulation;
  graph::simulate(graph, plan, graph::CostModel(options), simulation);
  return simulation;
}

}  // namespace

ProgramLog& program_log() {
  static auto* instance = new ProgramLog;
  return *instance;
}

std::string plan_text(const graph::Graph& graph, const graph::Plan& plan, const graph::PlanOptions& options) {
  const std::string search =
      options.effort > 1 ? "searched " + std::to_string(options.effort) + " times as long as usual\n" : "";
  return graph::to_string(graph) + "\n" + search + graph::to_string(plan) +
         graph::to_string(simulated(graph, plan, options));
}

void log_program(ProgramLog& log, const LoggedRun& run, std::string name) {
  const backend::Device* const accelerator = backend::accelerator();
  const graph::Description about{
      .name = std::move(name),
      .profile = accelerator == nullptr ? "cpu" : "cpu + " + accelerator->name(),
      .budget_bytes = accelerator_budget(),
      .candidates = run.candidates,
  };
  const graph::Simulation predicted = simulated(run.graph, run.plan, run.options);
  log.programs.push_back(graph::describe(run.graph, run.plan, predicted, run.times, about));
  if (log.programs.size() > kLoggedPrograms) log.programs.pop_front();
}

}  // namespace hetero::ops
