#include "ops/run/cut_run.h"
#include "ops/settings/fusion_counts.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>

#include "backend/fused/call.h"
#include "backend/registry/registry.h"
#include "backend/sim/sim_device.h"
#include "graph/cost/simulate.h"
#include "graph/plan/pipeline.h"
#include "graph/plan/resize.h"
#include "graph/verify/verify.h"
#include "ops/kernels/growth.h"
#include "ops/run/arrivals.h"
#include "ops/run/cost_history.h"
#include "ops/run/overlap.h"
#include "ops/run/placement_rules.h"
#include "ops/run/plan_cache.h"
#include "ops/run/storage_memory.h"
#include "ops/run/verify_flush.h"
#include "ops/settings/config.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

// The first runs of a plan with an accelerator are measured, then one in so many: the machine may change.
constexpr int kMeasuredRuns = 12;
constexpr uint32_t kSeldom = 16;

}  // namespace

backend::Capabilities planned_host() {
  backend::Capabilities rates = backend::cpu_device().capabilities();
  const backend::Device* const accelerator = backend::accelerator();
  if (accelerator == nullptr || accelerator->name() != "sim") return rates;
  const backend::SimOptions options = backend::sim_options();
  if (options.cpu_flops > 0) rates.flops = options.cpu_flops;
  if (options.cpu_flops_half > 0) rates.flops_half = options.cpu_flops_half;
  if (options.cpu_memory_bandwidth > 0) rates.memory_bandwidth = options.cpu_memory_bandwidth;
  return rates;
}

graph::PlanOptions configured_plan_options() {
  graph::PlanOptions options;
  options.fusion = last_bits_may_differ();
  options.cpu = planned_host();
  if (backend::Device* accelerator = backend::accelerator()) {
    options.has_accelerator = true;
    options.accelerator = accelerator->capabilities();
    options.accelerator_device = accelerator;
    options.accelerator_host_accessible = options.accelerator.host_accessible;
    options.policy = config().placement.load(std::memory_order_relaxed);
    options.compute_queues = static_cast<int>(config().compute_queues.load(std::memory_order_relaxed));
    options.join_copies = config().join_copies.load(std::memory_order_relaxed);
    options.preferences = &placement_rules().by_op();
    options.history = &cost_history();
  }
  return options;
}

namespace {

void add_counts(const graph::Plan& plan, const graph::RunCounts& counts) {
  Counters& total = counters();
  count(total.dead_nodes, plan.dead_nodes);
  count(total.cpu_kernels, counts.kernels[backend::kCpu]);
  count(total.accelerator_kernels, counts.kernels[backend::kAccelerator]);
  if (counts.copies != 0) {
    for (const graph::Instruction& instruction : plan.program) {
      if (instruction.kind != graph::Instruction::Kind::kCopy) continue;
      count(instruction.to == backend::kCpu ? total.copies_to_cpu : total.copies_to_accelerator);
    }
    count(total.bytes_to_cpu, counts.copied_bytes[backend::kCpu]);
  }
  if (counts.uploads_ahead != 0) count(total.copies_to_accelerator, counts.uploads_ahead);
  count(total.bytes_to_accelerator, counts.copied_bytes[backend::kAccelerator]);
  total.add(counts);
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

}  // namespace

// A plan for the cut out of one for other sizes; null where that cannot be.
CachedPlan* CutRun::resized_plan(PlanSet& known, const CachedPlan* similar, const PlanSettings& settings,
                                 const Cut& cut) {
  const PlanningTime time(cut);
  // Sizes that come back shall find their plan; sizes that only grow shall not fill the set with old ones.
  CachedPlan* target = known.full() ? known.own(similar) : nullptr;
  if (target == nullptr) {
    target = &known.add(cut);
    target->graph = similar->graph;
    target->plan = similar->plan;
    target->placed_seconds = similar->placed_seconds;
    target->candidates = similar->candidates;
    target->measured = similar->measured;
  }
  target->version = 0;  // until the plan is whole
  target->segments.reset();
  target->settings = settings;
  bool resized = graph::resize_plan(target->graph, cut.graph, options_, target->plan);
  if (resized && options_.has_accelerator) {
    predict(cut.graph, *target);
    resized = graph::keeps_placement(target->placed_seconds, target->predicted_seconds);
  }
  if (!resized) {
    known.drop(target);
    return nullptr;
  }
  target->keep(cut);
  graph::note_buffers(target->graph, target->plan, target->plan.notes);
  known.measure();
  count(counters().plans_resized);
  return target;
}

namespace {

// Tells the accelerator what it will be asked to run, so that it can begin to make it.
void announce_groups(const graph::Plan& plan, backend::Device& accelerator) {
  for (const graph::FusedGroup& group : plan.groups) {
    if (placement_of(plan, group).device != backend::kAccelerator) continue;
    accelerator.prepare_fused({group.kernel, group.space, group.launch, nullptr, group.numbers.data()});
  }
}

// Whether the plan is still what planning would make. Where only costs were learned since: unless they change what it is predicted to take, or it has just been
// measured to the end, and what is known now may speak for another.
bool still_right(CachedPlan& kept, const PlanSettings& settings, const graph::PlanOptions& options) {
  if (kept.settings == settings) return true;
  PlanSettings relearned = kept.settings;
  relearned.history = settings.history;
  relearned.slowness = settings.slowness;
  if (relearned != settings || (kept.measured >= kMeasuredRuns && !kept.reconsidered)) return false;
  const double seconds = graph::simulated_seconds(kept.graph, kept.plan, options);
  if (std::abs(seconds - kept.predicted_seconds) > kept.predicted_seconds / 4) return false;
  kept.settings = settings;
  kept.predicted_seconds = seconds;
  return true;
}

// Whether a plan may be taken over to other sizes. While costs are still learned from the program's runs, it is planned anew with what is known by then.
bool resizable(const CachedPlan& similar, const PlanSettings& settings) {
  PlanSettings relearned = similar.settings;
  if (similar.measured >= kMeasuredRuns) {
    relearned.history = settings.history;
    relearned.slowness = settings.slowness;
  }
  return relearned == settings;
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

bool CutRun::keeps_plans() { return executor_state().cuts.size() == 1; }

// Before planning: what other programs left on the accelerator goes where this one may need the memory.
void CutRun::find_room(const Cut& cut) {
  if (!options_.has_accelerator || accelerator_budget() == 0) return;
  uint64_t bytes = 0;
  for (const graph::Buffer& buffer : cut.graph.buffers) bytes += buffer.bytes;
  const double share = config().memory_pressure.load(std::memory_order_relaxed);
  make_room(cut, std::min(bytes + bytes / 8, static_cast<uint64_t>(share * static_cast<double>(accelerator_budget()))));
  options_.accelerator_bytes = room_for(cut);
}

void CutRun::predict(const graph::Graph& graph, CachedPlan& made) {
  made.predicted_seconds = graph::simulated_seconds(graph, made.plan, options_);
  made.accelerator_need = accelerator_need(graph, made.plan);
}

bool CutRun::still_fits(const CachedPlan& kept, const Cut& cut) {
  if (kept.accelerator_need == 0 || accelerator_budget() == 0) return true;
  make_room(cut, kept.accelerator_need);
  return room_for(cut) >= kept.accelerator_need;
}

graph::Plan& CutRun::plan_for(Cut& cut) {
  graph::PlanOptions& options = options_;
  PlanSet* const known = cut.plans();
  PlanSettings settings{
      .fusion = options.fusion, .jit = config().jit.load(std::memory_order_relaxed), .threads = cut.threads};
  if (options.has_accelerator) {
    settings.accelerator = backend::accelerator();
    settings.policy = options.policy;
    settings.compute_queues = options.compute_queues;
    settings.join_copies = options.join_copies;
    settings.pressure = static_cast<float>(config().memory_pressure.load(std::memory_order_relaxed));
    settings.budget = accelerator_budget();
    settings.preferences = placement_rules().version();
    if (known != nullptr) {
      known->belong_to(settings);
      const PlacementTrial& trial = known->trial;
      settings.second_best = options.policy == graph::Policy::kAuto && !trial.instead_of.empty();
      if (settings.second_best) options.instead_of = &trial.instead_of;
    }
    settings.history = cost_history().version();
  }
  kept_ = nullptr;
  AloneRuns alone;
  const auto measure_as = [&](const CachedPlan& kept) {
    if (!options.has_accelerator) return;
    alone = kept.alone;
    settings.slowness = options.slowness = alone.slowness;
    if (alone.stage == AloneRuns::Stage::kAlone) {
      settings.compute_queues = options.compute_queues = 1;
    }
  };
  if (cut.kept != nullptr) {
    measure_as(*cut.kept);
    if (cut.kept->renew(cut.values) && still_right(*cut.kept, settings, options) && still_fits(*cut.kept, cut)) {
      count(counters().plans_replayed);
      kept_ = cut.kept;
      return cut.kept->plan;
    }
    cut.graph = cut.kept->graph;
    known->drop(std::exchange(cut.kept, nullptr));
  }
  if (known == nullptr || ++known->sightings == 1) {
    // Fusing takes time that a program that never comes back does not pay back. Where it has to give the same bits as the next time, it is.
    if (!at::globalContext().deterministicAlgorithms()) options.fusion = false;
    options.thorough = false;
    find_room(cut);
    graph::make_plan(cut.graph, options, scratch_);
    return scratch_;
  }
  const CachedPlan* similar;
  bool reconsidered = false;
  if (CachedPlan* kept = known->find(cut, similar)) {
    measure_as(*kept);
    if (still_right(*kept, settings, options) && still_fits(*kept, cut) && renewed(*kept, cut)) {
      count(counters().plans_replayed);
      kept_ = kept;
      return kept->plan;
    }
    reconsidered = kept->measured >= kMeasuredRuns;
    known->drop(kept);
    similar = nullptr;
  } else if (similar == nullptr) {
    similar = cut.similar;
  }
  if (similar != nullptr && resizable(*similar, settings)) {
    find_room(cut);
    if (CachedPlan* const resized = resized_plan(*known, similar, settings, cut)) {
      if (options.has_accelerator) {
        announce_groups(resized->plan, *backend::accelerator());
        kept_ = resized;
      }
      return resized->plan;
    }
  }
  const PlanningTime time(cut);
  const int measured = similar == nullptr ? 0 : similar->measured;
  CachedPlan& made = known->add(cut);
  made.settings = settings;
  made.measured = measured;
  made.reconsidered = reconsidered;
  made.alone = alone;
  made.version = 0;  // until the plan is whole
  made.segments.reset();
  find_room(cut);
  graph::make_plan(cut.graph, options, made.plan);
  made.version = cut.version;
  if (options.has_accelerator) {
    predict(cut.graph, made);
    made.placed_seconds = made.predicted_seconds;
    made.candidates = candidates_;
    announce_groups(made.plan, *backend::accelerator());
  }
  kept_ = &made;
  graph::note_buffers(cut.graph, made.plan, made.plan.notes);
  known->measure();
  count(counters().plans_made);
  count_fusion(cut.graph, made.plan);
  return made.plan;
}

Status CutRun::start(Cut& cut, SyncReason reason) {
  if (has_spilled.load(std::memory_order_relaxed)) [[unlikely]]
    bring_back(cut);
  for (const graph::BufferId b : cut.to_close) {
    HeteroStorage* const storage = cut.holds[b].storage();
    // The nodes cannot see the bytes as they lie: they are lost to them, and so to what the run makes.
    if (Status status = close_gaps(storage); !status.ok()) storage->binding.error = std::move(status);
  }
  count(counters().flushes[static_cast<size_t>(reason)]);
  options_ = configured_plan_options();
  options_.effort = cut.effort;
  candidates_.clear();
  if (options_.has_accelerator) options_.candidates = &candidates_;
  const graph::Plan& plan = plan_for(cut);
  options_.instead_of = nullptr;  // planning is done
  const graph::Graph& graph = cut.planned();
  const int64_t log = config().log.load(std::memory_order_relaxed);
  if (config().verify_plans.load(std::memory_order_relaxed)) {
    Status status = graph::verify_graph(graph);
    if (status.ok()) status = graph::verify_plan(graph, plan, options_);
    if (!status.ok()) return status;
  }
  const bool keeps = config().keep_plans.load(std::memory_order_relaxed);
  std::string& text = executor_state().log.plan_text;
  if (keeps || log >= 2) text = plan_text(graph, plan, options_);
  if (log >= 1) {
    std::fprintf(stderr, "hetero: flush (%s): %zu nodes, %u dead\n%s", to_string(reason), graph.nodes.size(),
                 plan.dead_nodes, log >= 2 ? text.c_str() : "");
  }
  cut_ = &cut;
  plan_ = &plan;
  if (spills()) make_host_room(host_need(cut, plan));
  reason_ = reason;
  counts_ = graph::RunCounts();
  measures_ = keeps || (options_.has_accelerator && kept_ != nullptr &&
                        (kept_->measured < kMeasuredRuns || ++kept_->unmeasured % kSeldom == 0));
  if (measures_ && options_.has_accelerator) provisional_before_ = backend::accelerator()->provisional_runs();
  if (options_.has_accelerator && keeps_plans()) find_uploads(cut, plan, uploads_, uploaded_);
  executor_.begin(graph, plan, cut.bindings, counts_, measures_ ? &times_ : nullptr, &uploads_, find_segments());
  return Status();
}

// Null where launches stay by themselves. What is measured is measured kernel by kernel, and a profiler wants to see each.
std::unique_ptr<graph::Segments>* CutRun::find_segments() {
  if (!options_.has_accelerator || kept_ == nullptr || measures_ || at::hasCallbacks() ||
      !config().segments.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  return &kept_->segments;
}

bool CutRun::go_on(const std::atomic<int32_t>* stop) { return executor_.go_on(stop); }

Status CutRun::finish() {
  Status status = executor_.end();
  for (const StorageHold& hold : uploaded_) track_storage(hold.storage());
  uploaded_.clear();
  uploads_.entries.clear();
  const bool spilling = may_spill.load(std::memory_order_relaxed) || has_spilled.load(std::memory_order_relaxed);
  const bool all_small = kept_ != nullptr && kept_->largest_bound < kLargeStorage;
  if (options_.has_accelerator || spilling || !all_small) track_storages(*cut_);
  add_counts(*plan_, counts_);
  if (options_.has_accelerator && backend::accelerator()->has_virtual_clock()) advance_virtual_clock();
  if (measures_) note_run(status.ok());
  if (!status.ok()) [[unlikely]]
    note_failure();
  return status;
}

// What an operator was to change that the plan has left out, since a later one replaces it all, is lost: it would be older than what was recorded.
void CutRun::note_failure() {
  const graph::Graph& graph = cut_->planned();
  std::vector<uint8_t> older(graph.buffers.size());
  const auto mark = [&](const graph::Node& node, std::span<const graph::GroupOperand> stored) {
    for (int i = 0; i < node.operand_count; ++i) {
      const graph::Operand& operand = graph.operands_of(node)[i];
      const auto stores = [&](const graph::GroupOperand& o) { return o.buffer == operand.buffer && o.stores; };
      if (operand.writes() && std::ranges::none_of(stored, stores)) older[operand.buffer] = 1;
    }
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!plan_->live[n]) mark(graph.nodes[n], {});
  }
  for (const graph::FusedGroup& group : plan_->groups) {
    for (const uint32_t member : group.members) mark(graph.nodes[member], group.operands);
  }
  FailedRun run;
  for (size_t b = 0; b < cut_->bindings.size(); ++b) {
    graph::Binding* const binding = cut_->bindings[b];
    if (binding == nullptr || binding->error.ok()) continue;
    if (older[b] != 0) binding->valid_on = 0;
    run.errors.push_back(binding->error.message());
    run.storages.emplace_back(cut_->holds[b].storage(), false);
  }
  std::vector<FailedRun>& runs = executor_state().failed_runs;
  std::erase_if(runs, [](FailedRun& other) {
    std::erase_if(other.storages, [](const StorageHold& hold) { return !hold.alive(); });
    return other.storages.empty();
  });
  if (!run.storages.empty()) runs.push_back(std::move(run));
}

// A virtual clock does not see what a run does that uses the host only; it is told, and that is what the run has taken.
void CutRun::advance_virtual_clock() {
  if (!graph::uses_host_only(*plan_)) return;
  double seconds = 0;
  for (size_t p = 0; p < plan_->program.size(); ++p) {
    const double begin = seconds;
    seconds += graph::modelled_seconds(cut_->planned(), *plan_, plan_->program[p]);
    if (measures_) times_.spans[p] = {begin, seconds};
  }
  times_.seconds = seconds;
  backend::accelerator()->advance_host(seconds);
}

// Learns from what the run took, where all of it was done as it will be.
void CutRun::note_run(bool succeeded) {
  const graph::Graph& graph = cut_->planned();
  const bool on_host = graph::uses_host_only(*plan_);
  backend::Device* const accelerator = options_.has_accelerator ? backend::accelerator() : nullptr;
  const bool provisional = accelerator != nullptr && accelerator->provisional_runs() != provisional_before_;
  if (accelerator != nullptr && kept_ != nullptr && succeeded && !provisional) {
    Learned learned;
    if (!on_host || !accelerator->has_virtual_clock()) learned = learn_costs(graph, *plan_, options_, times_);
    ++kept_->measured;
    const double predicted = kept_->predicted_seconds;
    const bool judged = kept_->alone.note(times_.seconds, predicted, learned.beside);
    if (learned.slowness > 0) kept_->alone.learn(learned.slowness);
    if (PlanSet* const plans = cut_->plans(); plans != nullptr && judged) {
      plans->trial.note(times_.seconds, predicted, *plan_);
    }
  }
  if (!config().keep_plans.load(std::memory_order_relaxed)) return;
  ProgramLog& log = executor_state().log;
  log_program(log,
              {.graph = graph,
               .plan = *plan_,
               .options = options_,
               .times = &times_,
               .candidates = kept_ != nullptr ? kept_->candidates : candidates_},
              "flush " + std::to_string(++log.flushes) + ": " + to_string(reason_));
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
