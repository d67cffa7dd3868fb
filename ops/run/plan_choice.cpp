#include "ops/run/plan_choice.h"

#include <ATen/Context.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "backend/fused/call.h"
#include "backend/registry/registry.h"
#include "graph/cost/simulate.h"
#include "graph/ir/compare.h"
#include "graph/plan/pipeline.h"
#include "graph/plan/resize.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/trie.h"
#include "ops/run/cost_history.h"
#include "ops/run/placement_rules.h"
#include "ops/run/plan_options.h"
#include "ops/run/rewrite_slice.h"
#include "ops/settings/config.h"
#include "ops/settings/counters.h"
#include "ops/settings/fusion_counts.h"

namespace hetero::ops {
namespace {

// Counts what its scope takes as planning of the slice.
class PlanningTime {
 public:
  explicit PlanningTime(const TraceSlice& slice) : nodes_(slice.graph.nodes.size()) {}
  ~PlanningTime() {
    count(counters().planned_nodes, static_cast<int64_t>(nodes_));
    count(counters().planning_nanoseconds, (std::chrono::steady_clock::now() - start_).count());
  }
  PlanningTime(const PlanningTime&) = delete;

 private:
  const size_t nodes_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Tells accelerators what they will be asked to run, so that they can begin to make it.
void announce_groups(const graph::Plan& plan) {
  for (const graph::FusedGroup& group : plan.groups) {
    const backend::DeviceIndex device = placement_of(plan, group).device;
    if (device == backend::kCpu) continue;
    backend::device_at(device)->prepare_fused({group.kernel, group.space, group.launch, nullptr, group.numbers.data()});
  }
}

// Takes the numbers of a slice over to a plan that fits it exactly.
bool renewed(CachedPlan& kept, const TraceSlice& slice, const PlanRequest& request) {
  if (kept.graph.attributes != slice.graph.attributes) {
    std::vector<uint8_t> changed;
    graph::find_changed_attributes(kept.graph, slice.graph, changed);
    if (!graph::renew_numbers(slice.graph, changed, kept.plan)) return false;
  }
  kept.keep(slice, request);
  return true;
}

// Whether the accelerator can hold what the plan needs there, once others have made room.
bool still_fits(const CachedPlan& kept, const TraceSlice& slice) {
  if (kept.accelerator_need == 0 || accelerator_budget() == 0) return true;
  make_room(slice, kept.accelerator_need);
  return room_for(slice) >= kept.accelerator_need;
}

// The slice as it was recorded, when it has the plan's numbers.
void restore(TraceSlice& slice, const CachedPlan& kept, const PlanRequest& request) {
  slice.graph = kept.graph;
  if (kept.recorded.nodes.empty()) return;
  slice.graph.nodes = kept.recorded.nodes;
  slice.graph.operands = kept.recorded.operands;
  slice.graph.attributes = kept.recorded.attributes;
  std::vector<uint8_t> changed;
  put_numbers({request.values.data(), request.values.size()}, slice.graph, changed);
}

// Whether the plan's program is this one but for sizes. It is where both were recorded so, unless
// one was made another one.
bool same_but_sizes(const CachedPlan& known, const TraceSlice& slice) {
  using Kind = graph::Difference::Kind;
  if (known.recorded.nodes.empty() && slice.recorded.nodes.empty()) return true;
  const Kind found = graph::compare(known.graph, slice.graph, &graph::same_kind, nullptr).kind;
  return found == Kind::kNone || found == Kind::kBuffers;
}

}  // namespace

PlannedSlice PlanChoice::plan(TraceSlice& slice, PlanRequest& request) {
  configure(request, slice.threads);
  const PlannedSlice planned = choose(slice, request);
  options_.instead_of = nullptr;  // belongs to the plans that are kept
  return planned;
}

PlannedSlice PlanChoice::choose(TraceSlice& slice, PlanRequest& request) {
  if (request.kept != nullptr) {
    if (CachedPlan* const kept = reuse_kept(slice, request)) return {&kept->graph, &kept->plan, kept};
  }
  if (known_ == nullptr || ++known_->sightings == 1) return {&slice.graph, &plan_once(slice), nullptr};

  if (settings_.rewrites) rewrite_slice(slice, request.own_windows);
  const CachedPlan* similar;
  bool reconsidered = false;
  if (CachedPlan* const exact = known_->find(slice, similar)) {
    if (reuse_exact(slice, request, *exact) != nullptr) return {&slice.graph, &exact->plan, exact};
    reconsidered = exact->measured >= kMeasuredRuns;
    known_->drop(exact);
    similar = nullptr;
  } else if (similar == nullptr) {
    similar = request.similar;
  }
  if (similar != nullptr && is_resizable(*similar) && same_but_sizes(*similar, slice)) {
    find_room(slice);
    if (CachedPlan* const resized = resize(slice, request, *similar)) {
      return {&slice.graph, &resized->plan, options_.machine.has_accelerator() ? resized : nullptr};
    }
  }
  CachedPlan& made = plan_anew(slice, request, similar, reconsidered);
  return {&slice.graph, &made.plan, &made};
}

// Fills in the options and the settings under which a plan for the request is made or must have
// been made.
void PlanChoice::configure(const PlanRequest& request, int threads) {
  // What there is to know of a CPU alone stays as it is: replaying a plan does not describe the
  // machine again.
  if (configured_ && !options_.machine.has_accelerator() && backend::accelerator() == nullptr) {
    options_.fusion = last_bits_may_differ();
    options_.thorough = true;
  } else {
    options_ = configured_plan_options();
    configured_ = true;
  }
  options_.effort = request.effort;
  candidates_.clear();
  alone_ = IsolatedProfiling();
  known_ = plans_for(request);
  settings_ = {.fusion = options_.fusion,
               .rewrites = last_bits_may_vary() && !options_.machine.has_accelerator(),
               .jit = config().jit.load(std::memory_order_relaxed),
               .threads = threads};
  if (!options_.machine.has_accelerator()) return;
  options_.candidates = &candidates_;
  settings_.accelerator = backend::accelerator();
  settings_.policy = options_.policy;
  settings_.compute_queues = options_.compute_queues;
  settings_.join_copies = options_.join_copies;
  settings_.pressure = static_cast<float>(config().memory_pressure.load(std::memory_order_relaxed));
  settings_.budget = accelerator_budget();
  settings_.preferences = placement_rules().version();
  if (known_ != nullptr) {
    known_->belong_to(settings_);
    const PlacementTrial& trial = known_->trial;
    settings_.second_best = options_.policy == graph::Policy::kAuto && !trial.instead_of.empty();
    if (settings_.second_best) options_.instead_of = &trial.instead_of;
  }
  settings_.history = cost_history().version();
}

// Plans as the runs of this plan were measured: what was learned of it, and on one compute queue
// while its kernels are measured alone.
void PlanChoice::measure_as(const CachedPlan& kept) {
  if (!options_.machine.has_accelerator()) return;
  alone_ = kept.alone;
  settings_.slowness = options_.slowness = alone_.slowness;
  if (alone_.stage == IsolatedProfiling::Stage::kIsolated) settings_.compute_queues = options_.compute_queues = 1;
}

// Whether the plan is still what planning would make. Where only costs were learned since: unless
// they change what it is predicted to take, or it has just been measured to the end, and what is
// known now may speak for another.
bool PlanChoice::is_still_right(CachedPlan& kept, const TraceSlice& slice) const {
  if (kept.settings != settings_) {
    PlanSettings relearned = kept.settings;
    relearned.history = settings_.history;
    relearned.slowness = settings_.slowness;
    if (relearned != settings_ || (kept.measured >= kMeasuredRuns && !kept.reconsidered)) return false;
    const double seconds = graph::simulated_seconds(kept.graph, kept.plan, options_);
    if (std::abs(seconds - kept.predicted_seconds) > kept.predicted_seconds / 4) return false;
    kept.settings = settings_;
    kept.predicted_seconds = seconds;
  }
  return still_fits(kept, slice);
}

// Whether a plan may be taken over to other sizes. While costs are still learned from the program's
// runs, it is planned again with what is known by then.
bool PlanChoice::is_resizable(const CachedPlan& similar) const {
  PlanSettings relearned = similar.settings;
  if (similar.measured >= kMeasuredRuns) {
    relearned.history = settings_.history;
    relearned.slowness = settings_.slowness;
  }
  return relearned == settings_;
}

// Before planning: what other programs left on the accelerator goes where this one may need the
// memory.
void PlanChoice::find_room(const TraceSlice& slice) {
  if (!options_.machine.has_accelerator() || accelerator_budget() == 0) return;
  uint64_t bytes = 0;
  for (const graph::Buffer& buffer : slice.graph.buffers) bytes += buffer.bytes;
  const double share = config().memory_pressure.load(std::memory_order_relaxed);
  make_room(slice,
            std::min(bytes + bytes / 8, static_cast<uint64_t>(share * static_cast<double>(accelerator_budget()))));
  options_.machine[options_.searched].bytes = room_for(slice);
}

void PlanChoice::predict(const graph::Graph& graph, CachedPlan& made) const {
  made.predicted_seconds = graph::simulated_seconds(graph, made.plan, options_);
  made.accelerator_need = accelerator_need(graph, made.plan);
}

// Null where the plan that stands for the nodes is not the right one any more; the slice has its
// nodes then.
CachedPlan* PlanChoice::reuse_kept(TraceSlice& slice, PlanRequest& request) {
  CachedPlan& kept = *request.kept;
  measure_as(kept);
  if (kept.renew(request.values) && is_still_right(kept, slice)) {
    count(counters().plans_replayed);
    return &kept;
  }
  restore(slice, kept, request);
  known_->drop(std::exchange(request.kept, nullptr));
  return nullptr;
}

CachedPlan* PlanChoice::reuse_exact(const TraceSlice& slice, const PlanRequest& request, CachedPlan& kept) {
  measure_as(kept);
  if (!is_still_right(kept, slice) || !renewed(kept, slice, request)) return nullptr;
  count(counters().plans_replayed);
  return &kept;
}

const graph::Plan& PlanChoice::plan_once(const TraceSlice& slice) {
  // Fusing takes time that a program that never comes back does not pay back. Where it has to give
  // the same bits as the next time, it is.
  if (!at::globalContext().deterministicAlgorithms()) options_.fusion = false;
  options_.thorough = false;
  find_room(slice);
  graph::make_plan(slice.graph, options_, scratch_);
  return scratch_;
}

// A plan for the slice out of one for other sizes; null where that cannot be.
CachedPlan* PlanChoice::resize(const TraceSlice& slice, const PlanRequest& request, const CachedPlan& similar) {
  const PlanningTime time(slice);
  // Sizes that come back shall find their plan; sizes that only grow shall not fill the set with
  // old ones.
  CachedPlan* target = known_->full() ? known_->own(&similar) : nullptr;
  if (target == nullptr) {
    target = &known_->add(slice, request);
    target->graph = similar.graph;
    target->plan = similar.plan;
    target->placed_seconds = similar.placed_seconds;
    target->candidates = similar.candidates;
    target->measured = similar.measured;
  }
  target->version = 0;  // until the plan is whole
  target->segments.reset();
  target->settings = settings_;
  bool resized = graph::resize_plan(target->graph, slice.graph, options_, target->plan);
  if (resized && options_.machine.has_accelerator()) {
    predict(slice.graph, *target);
    resized = graph::keeps_placement(target->placed_seconds, target->predicted_seconds);
  }
  if (!resized) {
    known_->drop(target);
    return nullptr;
  }
  target->keep(slice, request);
  graph::note_buffers(target->graph, target->plan, target->plan.notes);
  known_->measure();
  count(counters().plans_resized);
  if (options_.machine.has_accelerator()) announce_groups(target->plan);
  return target;
}

CachedPlan& PlanChoice::plan_anew(const TraceSlice& slice, const PlanRequest& request, const CachedPlan* similar,
                                  bool reconsidered) {
  const PlanningTime time(slice);
  // It may be the one whose place is taken.
  const int measured = similar == nullptr ? 0 : similar->measured;
  CachedPlan& made = known_->add(slice, request);
  made.settings = settings_;
  made.measured = measured;
  made.reconsidered = reconsidered;
  made.alone = alone_;
  made.version = 0;  // until the plan is whole
  made.segments.reset();
  find_room(slice);
  graph::make_plan(slice.graph, options_, made.plan);
  made.version = request.version;
  if (options_.machine.has_accelerator()) {
    predict(slice.graph, made);
    made.placed_seconds = made.predicted_seconds;
    made.candidates = candidates_;
    announce_groups(made.plan);
  }
  graph::note_buffers(slice.graph, made.plan, made.plan.notes);
  known_->measure();
  count(counters().plans_made);
  count_fusion(slice.graph, made.plan);
  return made;
}

}  // namespace hetero::ops
