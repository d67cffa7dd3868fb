// Segments: launches of a repeated plan that are recorded once and then launched as one
// (Queue::record_segment, a CUDA graph).
//
// They follow each other on one queue of an accelerator and get the same addresses and numbers each
// time. Saved programs know their addresses in advance (run/bound_segments.cpp). Here every run
// finds them again, so each launch is compared, byte by byte, with the last time:
//
// 1. The *runs* of a plan are its longest sequences of launches of one compute queue, between which
//    this queue does nothing else and the host computes nothing. Within a run, a launch may wait
//    for those behind it: no other queue can tell.
// 2. A launch with other arguments than the last time has *changed*. After kMostChanges of that it
//    *moves*, and is launched alone from then on. When nothing but moving launches has changed for
//    kSettledRuns runs, the other parts of runs are recorded, as the last run left them.
// 3. The launches of a recorded part are held back until the last of them. If all are as recorded,
//    they are launched as one. Otherwise they are launched one by one, and the recording is
//    dropped, because a pointer in it is stale. They are also launched one by one after a failure.
// 4. A part that cannot be recorded is divided, down to single launches, which stay alone. If the
//    device is still preparing something, the next attempt comes after twice as many runs.
//
// Thread safety: none; one run at a time. Ownership: the devices outlive it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/device/device.h"
#include "graph/ir/graph.h"
#include "graph/ir/kernel_settings.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

class Segments {
 public:
  static constexpr int kSettledRuns = 3;
  static constexpr int kMostChanges = 4;
  static constexpr uint32_t kShortest = 2;  // launches that are worth a segment

  // The runner of the program. Everything about a position is about its launch in the current run.
  class Owner {
   public:
    virtual backend::Queue& queue_of(QueueId queue) = 0;
    // Submits the launch, and handles a failure to submit.
    virtual void launch_alone(uint32_t position) = 0;
    // Does what it does, on the thread that a device calls its tasks on.
    virtual void replay(uint32_t position) = 0;
    // The predicted time, in a task without a function.
    virtual backend::Task prediction_of(uint32_t position) const = 0;
    // Queue::record_segment, which also fails if a task that it calls fails.
    virtual Result<std::unique_ptr<backend::Segment>> record(QueueId queue, std::span<const backend::Task> tasks) = 0;
    // Whether anything has failed, as far as the host knows.
    virtual bool has_failed() const = 0;

   protected:
    ~Owner() = default;
  };

  // REQUIRES: as long as they are used, the plan's program stays what it is; its numbers may change. The owner is there whenever they are used.
  Segments(const Graph& graph, const Plan& plan, Owner& owner);
  ~Segments();
  Segments(const Segments&) = delete;

  // Whether they are this owner's, and of kernels with the settings of now: whether its run may use them.
  bool belong_to(const Owner& owner) const { return &owner_ == &owner && settings_ == kernel_settings(); }

  void begin_run();
  // The launch at `position` comes next on its queue, with these addresses and numbers. It is submitted now, or with those behind it.
  void launch(uint32_t position, std::span<void* const> addresses, std::span<const std::byte> numbers);
  // All has been launched.
  void finish_launches();
  // The run is over on all queues; records what has settled, if the run went well.
  void end_run(bool succeeded);

  // The program's positions that were launched as parts of segments in this run.
  const std::vector<uint32_t>& launched_together() const { return launched_; }
  int64_t launches() const { return launches_; }      // of segments, in this run
  int64_t recordings() const { return recordings_; }  // of all runs

 private:
  struct Recording;
  struct Step {
    uint32_t position = 0;
    QueueId queue = 0;
    std::vector<std::byte> given = {};  // the last time
    uint8_t changes = 0;
    bool seen = false;
    bool alone = false;
    Recording* recording = nullptr;
  };
  struct Run {
    uint32_t first, end;  // of steps_
  };
  struct Held {
    Recording* recording = nullptr;
    uint32_t count = 0;
    bool changed = false;
  };

  void find_runs(const Graph& graph, const Plan& plan);
  bool is_same(Step& step, std::span<void* const> addresses, std::span<const std::byte> numbers);
  void release(Held& held);
  void drop(Recording* recording);
  void record_parts();
  void record(uint32_t first, uint32_t end);

  Owner& owner_;
  const uint64_t settings_ = kernel_settings();
  std::vector<Step> steps_;  // run by run
  std::vector<Run> runs_;
  std::vector<uint32_t> step_of_;  // per instruction: 1 + its step; 0 for none
  std::vector<std::unique_ptr<Recording>> recorded_;
  Held held_[kMaxQueues];
  std::vector<uint32_t> launched_;
  int64_t launches_ = 0;
  int64_t recordings_ = 0;
  bool changed_ = false;  // something that does not move has, in this run
  int settled_ = 0;       // runs since something has
  int record_at_ = kSettledRuns;
};

}  // namespace hetero::graph
