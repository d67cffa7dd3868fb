// CutRun: planning and running of one cut of the trace, and the executor lock under which that happens.
//
// A cut that was planned before finds its plan at the trie node where its trace ended (plan_cache.h). What is seen for the first time may never come
// again: it is planned without fusion, and nothing is kept.
//
// Thread safety: the executor lock. The parts of a run may happen on different threads.

#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "graph/ir/plan.h"
#include "graph/ir/plan_options.h"
#include "graph/run/executor.h"
#include "ops/record/recorder.h"
#include "ops/run/plan_cache.h"
#include "ops/run/program_log.h"
#include "ops/settings/counters.h"

namespace hetero::ops {

// What a run has left with an error. Some of it existed before and has its bytes, without the change that failed: nobody may see them before one of the
// run's errors is raised (give_back() in sync.h).
struct FailedRun {
  std::vector<std::string> errors;
  std::vector<StorageHold> storages;  // weakly: what nobody owns any more is of no concern
};

struct ExecutorState {
  std::recursive_mutex mutex;          // the executor lock; recursive because a Python kernel may use hetero tensors
  std::vector<const Cut*> cuts;        // of the runs that go on, each inside the one before
  Status deferred;                     // the first error that no caller has seen
  std::vector<FailedRun> failed_runs;  // of whose errors none was raised
  ProgramLog log;
};
ExecutorState& executor_state();

// A run goes on, for a scope; what the cut touches keeps its bytes where they are. REQUIRES: the executor lock.
class RunScope {
 public:
  explicit RunScope(const Cut& cut) { executor_state().cuts.push_back(&cut); }
  ~RunScope() { executor_state().cuts.pop_back(); }
  RunScope(const RunScope&) = delete;
};

// The default dtype, for a scope.
class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype);
  ~DefaultDtype();
  DefaultDtype(const DefaultDtype&) = delete;

 private:
  const at::ScalarType before_;
  bool changed_ = false;
};

// The host by whose rates planning goes: this one, or that of the simulated machine.
backend::Capabilities planned_host();

// What planning may use, as configured in this process: devices, fusion, placement, measured costs.
graph::PlanOptions configured_plan_options();

class CutRun {
 public:
  // Plans the cut, and runs it to its end on this thread, for a sync point. Returns the first error.
  Status run(Cut& cut, SyncReason reason);

  // The same in parts: start(), go_on() until it returns true, finish(). REQUIRES: the cut lives until finish().
  Status start(Cut& cut, SyncReason reason);
  bool go_on(const std::atomic<int32_t>* stop);
  Status finish();

  // Whether plans can be kept now: a run inside another must not replace the other's plan.
  static bool keeps_plans();

 private:
  graph::Plan& plan_for(Cut& cut);
  void predict(const graph::Graph& graph, CachedPlan& made);
  CachedPlan* resized_plan(PlanSet& known, const CachedPlan* similar, const PlanSettings& settings, const Cut& cut);
  void advance_virtual_clock();
  void note_run(bool succeeded);
  void note_failure();
  void find_room(const Cut& cut);
  std::unique_ptr<graph::Segments>* find_segments();
  bool still_fits(const CachedPlan& kept, const Cut& cut);

  Cut* cut_ = nullptr;
  const graph::Plan* plan_ = nullptr;
  CachedPlan* kept_ = nullptr;  // whose plan it is; null for one that is not kept
  SyncReason reason_ = SyncReason::kFlush;
  bool measures_ = false;
  int64_t provisional_before_ = 0;  // Device::provisional_runs() when it began
  graph::RunTimes times_;
  std::vector<graph::Candidate> candidates_;
  graph::Plan scratch_;
  graph::PlanOptions options_;
  graph::Executor executor_;
  graph::RunCounts counts_;
  graph::Uploads uploads_;  // for the next program, and who owns them
  std::vector<StorageHold> uploaded_;
};

}  // namespace hetero::ops
