#include "ops/cut_run.h"
#include "ops/fusion_counts.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>

#include <chrono>
#include <cstdio>

#include "backend/registry.h"
#include "graph/simulate.h"
#include "graph/verify.h"
#include "ops/accelerator_memory.h"
#include "ops/config.h"
#include "ops/growth.h"
#include "ops/overlap.h"
#include "ops/parallel.h"
#include "ops/placement_rules.h"
#include "ops/plan_cache.h"
#include "ops/verify_flush.h"

namespace hetero::ops {
namespace {

// The share of the accelerator's memory that a program may claim from others before it is planned.
constexpr std::pair<uint64_t, uint64_t> kPressure{4, 5};

graph::PlanOptions plan_options() {
  graph::PlanOptions options;
  options.fusion = last_bits_may_differ();
  options.cpu = backend::cpu_device().capabilities();
  if (backend::Device* accelerator = backend::accelerator()) {
    options.has_accelerator = true;
    options.accelerator = accelerator->capabilities();
    options.accelerator_host_accessible = options.accelerator.host_accessible;
    options.policy = config().placement.load(std::memory_order_relaxed);
    options.preferences = &placement_rules().by_op();
  }
  return options;
}

void add_counts(const graph::Plan& plan, const graph::RunCounts& counts) {
  Counters& total = counters();
  count(total.dead_nodes, plan.dead_nodes);
  count(total.cpu_kernels, counts.kernels[backend::kCpu]);
  count(total.fused_groups, counts.fused_groups);
  count(total.fused_nodes, counts.fused_nodes);
  count(total.batched_nodes, counts.batched_nodes);
  count(total.compiled_groups, counts.compiled_groups);
  count(total.accelerator_kernels, counts.kernels[backend::kAccelerator]);
  if (counts.copies != 0) {
    for (const graph::Instruction& instruction : plan.program) {
      if (instruction.kind != graph::Instruction::Kind::kCopy) continue;
      count(instruction.to == backend::kCpu ? total.copies_to_cpu : total.copies_to_accelerator);
    }
    count(total.bytes_to_cpu, counts.copied_bytes[backend::kCpu]);
    count(total.bytes_to_accelerator, counts.copied_bytes[backend::kAccelerator]);
  }
  count(total.events, counts.events);
  count(total.waits, counts.waits);
  count(total.skipped_nodes, counts.skipped);
}

// Counts what its scope takes as planning of the cut.
class PlanningTime {
 public:
  explicit PlanningTime(const Cut& cut) : nodes_(cut.graph.nodes.size()) {}
  ~PlanningTime() {
    count(counters().planned_nodes, static_cast<int64_t>(nodes_));
    count(counters().planning_nanoseconds, (std::chrono::steady_clock::now() - start_).count());
  }
  PlanningTime(const PlanningTime&) = delete;

 private:
  const size_t nodes_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A plan for the cut out of one for other sizes; null where that cannot be.
graph::Plan* resized_plan(PlanSet& known, CachedPlan* similar, const Cut& cut, const graph::PlanOptions& options) {
  const PlanningTime time(cut);
  // Sizes that come back shall find their plan; sizes that only grow shall not fill the set with old ones.
  CachedPlan* target = similar;
  if (!known.full()) {
    target = &known.add(cut);
    target->graph = similar->graph;
    target->plan = similar->plan;
    target->settings = similar->settings;
  }
  target->version = 0;  // until the plan is whole
  if (!graph::resize_plan(target->graph, cut.graph, options, target->plan)) {
    known.drop(target);
    return nullptr;
  }
  target->keep(cut);
  graph::note_buffers(target->graph, target->plan, target->plan.notes);
  known.measure();
  count(counters().plans_resized);
  return &target->plan;
}

// Takes the numbers of a cut over to a plan that fits it exactly.
bool renewed(CachedPlan& kept, const Cut& cut) {
  if (kept.graph.attributes != cut.graph.attributes) {
    std::vector<uint8_t> changed;
    graph::find_changed_attributes(kept.graph, cut.graph, changed);
    if (!graph::renew_numbers(cut.graph, changed, kept.plan)) return false;
  }
  kept.keep(cut);
  return true;
}

}  // namespace

DefaultDtype::DefaultDtype(at::ScalarType dtype) : before_(c10::typeMetaToScalarType(c10::get_default_dtype())) {
  if (before_ != dtype) c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  changed_ = before_ != dtype;
}
DefaultDtype::~DefaultDtype() {
  if (changed_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(before_));
}

ExecutorState& executor_state() {
  static auto* instance = new ExecutorState;
  return *instance;
}

bool CutRun::keeps_plans() { return executor_state().depth == 1; }

// Before planning: what other programs left on the accelerator goes where this one may need the memory.
void CutRun::find_room(const Cut& cut) {
  if (!options_.has_accelerator || accelerator_budget() == 0) return;
  uint64_t bytes = 0;
  for (const graph::Buffer& buffer : cut.graph.buffers) bytes += buffer.bytes;
  make_room(cut, std::min(bytes + bytes / 8, accelerator_budget() / kPressure.second * kPressure.first));
  options_.accelerator_bytes = room_for(cut);
}

bool CutRun::still_fits(const CachedPlan& kept, const Cut& cut) {
  if (kept.accelerator_need == 0 || accelerator_budget() == 0) return true;
  make_room(cut, kept.accelerator_need);
  return room_for(cut) >= kept.accelerator_need;
}

graph::Plan& CutRun::plan_for(Cut& cut) {
  graph::PlanOptions& options = options_;
  PlanSet* const known = cut.keeps && cut.end != nullptr ? &cut.end->plans() : nullptr;
  PlanSettings settings{
      .fusion = options.fusion, .jit = config().jit.load(std::memory_order_relaxed), .threads = cut.threads};
  if (options.has_accelerator) {
    settings.accelerator = backend::accelerator();
    settings.policy = options.policy;
    settings.budget = accelerator_budget();
    settings.preferences = placement_rules().version();
  }
  if (cut.kept != nullptr) {
    if (cut.kept->renew(cut.values) && cut.kept->settings == settings && still_fits(*cut.kept, cut)) {
      count(counters().plans_replayed);
      return cut.kept->plan;
    }
    cut.graph = cut.kept->graph;
    known->drop(std::exchange(cut.kept, nullptr));
  }
  if (known == nullptr || ++known->sightings == 1) {
    options.fusion = false;
    find_room(cut);
    graph::make_plan(cut.graph, options, scratch_);
    return scratch_;
  }
  CachedPlan* similar;
  if (CachedPlan* kept = known->find(cut, similar)) {
    if (kept->settings == settings && still_fits(*kept, cut) && renewed(*kept, cut)) {
      count(counters().plans_replayed);
      return kept->plan;
    }
    known->drop(kept);
    similar = nullptr;
  }
  // Where nodes run depends on sizes.
  if (similar != nullptr && similar->settings == settings && !options.has_accelerator) {
    if (graph::Plan* plan = resized_plan(*known, similar, cut, options)) return *plan;
  }
  const PlanningTime time(cut);
  CachedPlan& made = known->add(cut);
  made.settings = settings;
  made.version = 0;  // until the plan is whole
  find_room(cut);
  graph::make_plan(cut.graph, options, made.plan);
  made.version = cut.version;
  made.accelerator_need = options.has_accelerator ? accelerator_need(cut.graph, made.plan) : 0;
  graph::note_buffers(cut.graph, made.plan, made.plan.notes);
  known->measure();
  count(counters().plans_made);
  count_fusion(cut.graph, made.plan);
  return made.plan;
}

Status CutRun::start(Cut& cut, SyncReason reason) {
  for (const graph::BufferId b : cut.to_close) {
    HeteroStorage* const storage = cut.holds[b].storage();
    // The nodes cannot see the bytes as they lie: they are lost to them, and so to what the run makes.
    if (Status status = close_gaps(storage); !status.ok()) storage->binding.error = std::move(status);
  }
  count(counters().flushes[static_cast<size_t>(reason)]);
  options_ = plan_options();
  const graph::Plan& plan = plan_for(cut);
  const graph::Graph& graph = cut.planned();
  const int64_t log = config().log.load(std::memory_order_relaxed);
  if (config().verify_plans.load(std::memory_order_relaxed)) {
    Status status = graph::verify_graph(graph);
    if (status.ok()) status = graph::verify_plan(graph, plan, options_);
    if (!status.ok()) return status;
  }
  std::string& text = executor_state().plan_text;
  if (config().keep_plans.load(std::memory_order_relaxed) || log >= 2) {
    graph::Simulation simulation;
    graph::simulate(graph, plan, graph::CostModel(options_), simulation);
    text = graph::to_string(graph) + "\n" + graph::to_string(plan) + graph::to_string(simulation);
  }
  if (log >= 1) {
    std::fprintf(stderr, "hetero: flush (%s): %zu nodes, %u dead\n%s", to_string(reason), graph.nodes.size(),
                 plan.dead_nodes, log >= 2 ? text.c_str() : "");
  }
  cut_ = &cut;
  plan_ = &plan;
  counts_ = graph::RunCounts();
  executor_.begin(graph, plan, cut.bindings, counts_);
  return Status();
}

bool CutRun::go_on(const std::atomic<int32_t>* stop) { return executor_.go_on(stop); }

Status CutRun::finish() {
  Status status = executor_.end();
  if (options_.has_accelerator) track_accelerator(*cut_);
  add_counts(*plan_, counts_);
  return status;
}

Status CutRun::run(Cut& cut, SyncReason reason) {
  RECORD_FUNCTION("hetero::flush", std::vector<c10::IValue>());
  // Planning, too, asks what untyped numbers become.
  const DefaultDtype dtype(cut.default_dtype);
  Status status = start(cut, reason);
  if (!status.ok()) return status;
  WithoutInterpreter released;
  KernelScope scope;
  choose_thread_count();
  FlushVerifier verifier(config().verify.load(std::memory_order_relaxed), cut);
  const auto begin = std::chrono::steady_clock::now();
  go_on(nullptr);
  status = finish();
  if (cut.keeps && cut.end != nullptr) {
    const auto now = std::chrono::steady_clock::now();
    overlap().learn(cut, begin - cut.begun, now - begin);
    if (cut.mark != nullptr) overlap().judge(cut.mark, now - cut.divided_begun);
  }
  return status.ok() ? verifier.compare(cut) : status;
}

}  // namespace hetero::ops
