// Profile: what ran on which queue, and when, for a profiler (ops/process/kineto.h).
//
// While it is on, runs are measured kernel by kernel. A run adds its instructions, with the notes
// of the calls that recorded them; an operator that runs at once adds itself.
//
// Thread safety: any thread.
// Ownership: one leaked instance.

#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "graph/ir/instruction.h"
#include "graph/ir/plan.h"
#include "graph/run/run_data.h"
#include "ops/record/node_note.h"

namespace hetero::ops {

// Times in nanoseconds since the epoch.
struct ProfiledSpan {
  enum class Kind : uint8_t { kKernel, kCopy, kRun };
  Kind kind = Kind::kKernel;
  graph::QueueId queue = graph::kHostQueue;
  int64_t begin = 0;
  int64_t end = 0;
  std::string name{};
  NodeNote note{};     // of the call that recorded it; of a kernel for several, the first one
  uint64_t nodes = 1;  // that it computes
  uint64_t bytes = 0;  // of a copy
  int64_t run = 0;     // the number of the run that it is a part of; 0: none
};

class Profile {
 public:
  void start();
  // Returns what was added since start().
  std::vector<ProfiledSpan> stop();

  // `begun`: when the run began; `reason`: why it ran.
  void add_run(const graph::Graph& graph, const graph::Plan& plan, const graph::RunTimes& times, const NodeNotes& notes,
               int64_t begun, const char* reason);
  // What ran on the calling thread from `begun` until now.
  void add_call(std::string name, int64_t begun);

 private:
  std::mutex mutex_;
  std::vector<ProfiledSpan> spans_;
  int64_t runs_ = 0;
  // A virtual clock may be ahead of the host's; runs do not overlap.
  int64_t last_end_ = 0;
};

Profile& profile();

// An operator that runs at once, for a scope.
class ProfiledCall {
 public:
  // REQUIRES: `name` lives as long.
  explicit ProfiledCall(const std::string& name) : name_(name), begun_(profiles() ? profiler_time() : 0) {}
  ~ProfiledCall() {
    if (begun_ != 0) [[unlikely]]
      profile().add_call(name_, begun_);
  }
  ProfiledCall(const ProfiledCall&) = delete;

 private:
  const std::string& name_;
  const int64_t begun_;
};

}  // namespace hetero::ops
