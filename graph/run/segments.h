// Segments: what is remembered of a plan that runs again and again, so that its launches become
// segments (segment_recorder.h).
//
// A lazy run finds its addresses each time. So each launch is compared, byte by byte, with the last
// run's. The launches of a recording are held back until the last of them. If all are as recorded,
// they are launched as one. If one differs, or after a failure, they are launched one by one, in
// their order. Recording is left to the end of a run, when all queues are done.
//
// Thread safety: none; one run at a time. Ownership: the devices outlive it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/run/segment_recorder.h"

namespace hetero::graph {

class Segments {
 public:
  // The runner of the program.
  class Owner : public SegmentRecorder::Owner {
   public:
    virtual backend::Queue& queue_of(QueueId queue) = 0;
    // Submits the launch, and handles a failure to submit.
    virtual void launch_alone(uint32_t position) = 0;
    // Whether anything has failed, as far as the host knows.
    virtual bool has_failed() const = 0;

   protected:
    ~Owner() = default;
  };

  // REQUIRES: as long as they are used, the plan's program stays what it is; its numbers may
  // change. The owner is there whenever they are used.
  Segments(const Graph& graph, const Plan& plan, Owner& owner)
      : owner_(owner),
        runs_(find_launch_runs(graph, plan)),
        recorder_(plan.program.size(), runs_, owner, {.most_changes = 4, .divides = true}),
        given_(plan.program.size()) {}
  Segments(const Segments&) = delete;

  // Whether this owner's run may use them: they are its own, and kernels have the same settings.
  bool belong_to(const Owner& owner) const { return &owner_ == &owner && recorder_.is_current(); }

  void begin_run();
  // The launch at `position` comes next on its queue, with these addresses and numbers. It is
  // submitted now, or with those behind it.
  void launch(uint32_t position, std::span<void* const> addresses, std::span<const std::byte> numbers);
  // The run is over on all queues; records what has settled, if the run went well.
  void end_run(bool succeeded);

  // The program's positions that were launched as parts of segments in this run.
  const std::vector<uint32_t>& launched_together() const { return launched_; }
  int64_t launches() const { return launches_; }                 // of segments, in this run
  int64_t recordings() const { return recorder_.recordings(); }  // of all runs

 private:
  // What a launch was given the last time.
  struct Given {
    std::vector<std::byte> bytes;
    bool seen = false;

    // Notes what it is given now. False where that is something else.
    bool is_same(std::span<const std::byte> addresses, std::span<const std::byte> numbers);
  };

  void release(QueueId queue);

  Owner& owner_;
  const LaunchRuns runs_;
  SegmentRecorder recorder_;
  std::vector<Given> given_;                // per instruction
  std::vector<uint32_t> held_[kMaxQueues];  // positions
  std::vector<uint32_t> launched_;
  int64_t launches_ = 0;
  bool changed_ = false;  // something that does not move has, in this run
};

}  // namespace hetero::graph
