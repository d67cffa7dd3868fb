// SegmentRecorder: decides which launches of a program become segments, records them, and drops
// what has gone stale (Queue::record_segment, a CUDA graph). Lazy runs (segments.h) and bound runs
// (bound_segments.cpp) use it. They tell it of changed addresses, and launch what it has recorded.
//
// 1. The *runs* of a program are its longest sequences of launches of one compute queue, between
//    which this queue does nothing else and the host computes nothing. Within a run, a launch may
//    be submitted earlier or later than it stands: no other queue can tell, since events order
//    queues, and this one neither records nor waits for any in between. Launches with side effects,
//    or whose numbers are drawn for each run, belong to no run.
// 2. A launch whose addresses change discards the recording that it is part of. After so many
//    changes as the policy allows it *moves*, and is launched alone from then on. So a caller who
//    lends other memory for every request pays for a few recordings once.
// 3. When nothing but moving launches has changed for kSettledRuns runs, the other parts of runs
//    are recorded as they are.
// 4. A part that cannot be recorded is divided, down to single launches, or stays alone as a whole.
//    If the device is still preparing something, the next attempt comes after twice as many runs.
// 5. Other settings of kernels (graph/ir/kernel_settings.h) discard everything.
//
// Replaying what was captured is the idea of CUDA graphs. That captured addresses go stale is the
// trap of TVM's graph_executor_cuda_graph, which froze the pointers of its zero-copy inputs.
//
// Thread safety: none; one run at a time. Ownership: the devices outlive it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "graph/ir/kernel_settings.h"
#include "graph/run/submit.h"

namespace hetero::graph {

// A run of launches: see 1.
struct LaunchRun {
  QueueId queue;
  std::vector<uint32_t> positions;  // in the program
};
using LaunchRuns = std::vector<LaunchRun>;
// `draws`: per node, whether its attributes may change between runs; empty: none do.
LaunchRuns find_launch_runs(const Graph& graph, const Plan& plan, std::span<const uint8_t> draws = {});

class SegmentRecorder {
 public:
  static constexpr uint64_t kSettledRuns = 3;
  static constexpr uint32_t kShortest = 2;  // launches that are worth a segment

  struct Policy {
    uint8_t most_changes;  // of a launch, until it moves
    bool divides;          // what cannot be recorded
  };

  class Owner : public Launcher {
   public:
    // The addresses that a recording of the launch keeps, if any.
    virtual std::span<void* const> addresses_of(uint32_t /*position*/) const { return {}; }
    // Queue::record_segment of their tasks, which also fails if a task that it calls fails.
    virtual Result<std::unique_ptr<backend::Segment>> record(QueueId queue, std::span<Launch> launches) = 0;

   protected:
    ~Owner() = default;
  };

  // Launches of one run that follow each other, as one. It keeps its addresses, as a CUDA graph
  // does.
  struct Recording {
    QueueId queue;
    std::span<const uint32_t> positions;
    std::vector<void*> addresses = {};
    std::vector<Launch> launches = {};
    std::unique_ptr<backend::Segment> segment = nullptr;
  };

  // Of a program of so many instructions. REQUIRES: `runs` outlive it; the owner is there whenever
  // it is used.
  SegmentRecorder(size_t instructions, const LaunchRuns& runs, Owner& owner, Policy policy);
  SegmentRecorder(const SegmentRecorder&) = delete;

  // The recording that the launch is part of, or null.
  const Recording* at(uint32_t position) const {
    const Step* const step = find_step(position);
    return step == nullptr ? nullptr : step->recording;
  }
  // The run that it is in, or null.
  const LaunchRun* run_of(uint32_t position) const {
    const Step* const step = find_step(position);
    return step == nullptr ? nullptr : step->run;
  }
  int64_t recordings() const { return recordings_; }  // that were made
  // Whether at() may say something else than when this was last asked.
  bool has_changed() { return std::exchange(changed_, false); }

  void begin_run() { ++runs_; }
  // The launch has other addresses than in the last run. Several changes between two runs are one.
  // False where it is alone for good.
  // REQUIRES: it is in a run, and nothing of its recording runs.
  bool note_change(uint32_t position);
  // A run in which nothing has changed that does not move.
  void count_run() { ++settled_; }
  void record_if_settled() {
    if (settled_ == record_at_) record_parts();
  }
  // The recording cannot be launched: it may still run from before, but is not used any more.
  void refuse(const Recording& recording);
  // Whether kernels have the settings of the recordings. If not, forget() them.
  bool is_current() const { return settings_ == kernel_settings(); }
  // REQUIRES: nothing of them runs.
  void forget();

 private:
  struct Step {
    const LaunchRun* run;
    const Recording* recording = nullptr;
    uint64_t changed_after = 0;  // runs
    uint8_t changes = 0;
    bool refused = false;
  };

  const Step* find_step(uint32_t position) const {
    return step_of_[position] == 0 ? nullptr : &steps_[step_of_[position] - 1];
  }
  Step& step_at(uint32_t position) { return steps_[step_of_[position] - 1]; }
  bool is_alone(const Step& step) const { return step.refused || step.changes == policy_.most_changes; }
  void settle_again();
  void record_parts();
  void record(QueueId queue, std::span<const uint32_t> positions);

  const LaunchRuns& launch_runs_;
  Owner& owner_;
  const Policy policy_;
  uint64_t settings_ = kernel_settings();
  std::vector<Step> steps_;
  std::vector<uint32_t> step_of_;  // per instruction: 1 + its step; 0 for none
  std::vector<std::unique_ptr<Recording>> recorded_;
  int64_t recordings_ = 0;
  bool changed_ = true;
  uint64_t runs_ = 0;
  uint64_t settled_ = 0;  // runs since something has changed
  uint64_t record_at_ = kSettledRuns;
};

}  // namespace hetero::graph
