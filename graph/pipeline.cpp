// make_plan: the pipeline of passes. See passes/passes.h for what each reads and writes.

#include <memory>

#include "graph/passes/passes.h"

namespace hetero::graph {
namespace {

// Everything after placement. False where the accelerator's memory does not hold it.
bool lay_out(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  insert_copies(graph, plan, scratch);
  plan.fusion.clear();
  if (options.fusion && host_only(options)) {
    fuse_nodes(graph, plan, scratch);
    join_calls(graph, plan, scratch);
  } else {
    plan.groups.clear();
    plan.batches.clear();
  }
  if (!host_only(options)) order_queues(graph, plan, scratch);
  const bool fits = plan_memory(graph, options, plan, scratch);
  plan.event_count = 0;
  if (!host_only(options)) insert_events(plan, scratch);
  return fits;
}

}  // namespace

Scratch& thread_scratch() {
  // On the heap: a shared library has little room for thread-local objects.
  thread_local const auto own = std::make_unique<Scratch>();
  return *own;
}

void make_plan(const Graph& graph, const PlanOptions& options, Plan& plan) {
  Scratch& scratch = thread_scratch();
  plan.notes.placed.clear();
  plan.notes.written.clear();

  drop_dead_values(graph, plan, scratch);

  place_nodes(graph, options, kAnyBytes, plan, scratch);
  if (lay_out(graph, options, plan, scratch)) return;

  // The budget counts each buffer once, for good; an eighth is left for what the arena wastes
  // between its slices.
  const uint64_t budget = options.accelerator_bytes - options.accelerator_bytes / 8;
  place_nodes(graph, options, budget, plan, scratch);
  if (lay_out(graph, options, plan, scratch)) return;

  place_nodes(graph, options, 0, plan, scratch);
  lay_out(graph, options, plan, scratch);
}

}  // namespace hetero::graph
