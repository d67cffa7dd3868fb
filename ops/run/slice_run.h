// SliceRun: planning and running of one slice that was cut out of the trace.
//
// Thread safety: the executor lock. The parts of a run may happen on different threads.

#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "graph/run/executor.h"
#include "ops/record/trace_slice.h"
#include "ops/run/plan_choice.h"
#include "ops/settings/counters.h"

namespace hetero::ops {

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

class SliceRun {
 public:
  // For a sync point: plans the slice and runs it to its end on this thread. Returns the first
  // error.
  Status run(Cut& cut, SyncReason reason);
  // When the last run() began to run, and when it had run.
  std::chrono::steady_clock::time_point began() const { return began_; }
  std::chrono::steady_clock::time_point ended() const { return ended_; }

  // The same in parts: start(), go_on() until it returns true, finish(). REQUIRES: the cut lives
  // until finish().
  Status start(Cut& cut, SyncReason reason);
  bool go_on(const std::atomic<int32_t>* stop);
  Status finish();

  // Whether plans can be kept now: a run inside another must not replace the other's plan.
  static bool keeps_plans();

 private:
  void advance_virtual_clock();
  void note_run(bool succeeded);
  void note_failure();
  std::unique_ptr<graph::Segments>* find_segments();

  Cut* cut_ = nullptr;
  PlanChoice choice_;
  PlannedSlice planned_;
  SyncReason reason_ = SyncReason::kFlush;
  bool measures_ = false;
  bool profiles_ = false;
  int64_t begun_at_ = 0;            // profiler_time() when it began, where it profiles
  int64_t provisional_before_ = 0;  // Device::provisional_runs() when it began
  std::chrono::steady_clock::time_point began_;
  std::chrono::steady_clock::time_point ended_;
  graph::RunTimes times_;
  graph::Executor executor_;
  graph::RunCounts counts_;
  graph::Uploads uploads_;  // for the next program, and who owns them
  std::vector<StorageHold> uploaded_;
};

}  // namespace hetero::ops
