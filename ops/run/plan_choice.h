// PlanChoice: which plan runs a slice of the trace.
//
//   1. the plan that stands for its nodes (PlanRequest::kept), with this slice's numbers
//   2. for what is seen for the first time, and may never come again: a plan without fusion, which
//      is not kept
//   3. a kept plan that fits exactly
//   4. a kept plan for other sizes, taken over to these
//   5. a new plan, which is kept
//
// A kept plan is dropped if it is no longer what planning would make: another setting, other
// measured costs, less memory.
//
// Thread safety: the executor lock.

#pragma once

#include <vector>

#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "ops/record/plan_cache.h"
#include "ops/record/trace_slice.h"

namespace hetero::ops {

// What planning hands to running.
struct PlannedSlice {
  const graph::Graph* graph = nullptr;
  const graph::Plan* plan = nullptr;
  CachedPlan* kept = nullptr;  // whose plan it is; null for one that learns nothing from its runs
};

class PlanChoice {
 public:
  // The first runs of a plan with an accelerator are measured.
  static constexpr int kMeasuredRuns = 12;

  // REQUIRES: the slice lives as long as the result is used, and no other slice is planned
  // meanwhile.
  PlannedSlice plan(TraceSlice& slice, PlanRequest& request);

  // For which the last slice was planned, and the placements that were looked at.
  const graph::PlanOptions& options() const { return options_; }
  const std::vector<graph::Candidate>& candidates() const { return candidates_; }

 private:
  PlannedSlice choose(TraceSlice& slice, PlanRequest& request);
  CachedPlan* reuse_kept(TraceSlice& slice, PlanRequest& request);
  CachedPlan* reuse_exact(const TraceSlice& slice, const PlanRequest& request, CachedPlan& kept);
  CachedPlan* resize(const TraceSlice& slice, const PlanRequest& request, const CachedPlan& similar);
  const graph::Plan& plan_once(const TraceSlice& slice);
  CachedPlan& plan_anew(const TraceSlice& slice, const PlanRequest& request, const CachedPlan* similar,
                        bool reconsidered);

  void configure(const PlanRequest& request, int threads);
  void measure_as(const CachedPlan& kept);
  bool is_still_right(CachedPlan& kept, const TraceSlice& slice) const;
  bool is_resizable(const CachedPlan& similar) const;
  void find_room(const TraceSlice& slice);
  void predict(const graph::Graph& graph, CachedPlan& made) const;

  graph::PlanOptions options_;
  bool configured_ = false;
  PlanSettings settings_;
  IsolatedProfiling alone_;   // goes over to the plan that is made in a dropped one's stead
  PlanSet* known_ = nullptr;  // the plans kept for the slice
  std::vector<graph::Candidate> candidates_;
  graph::Plan scratch_;
};

}  // namespace hetero::ops
