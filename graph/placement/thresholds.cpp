// Placement by thresholds:
//
//   1. A task that is not `time_ratio` times as fast on the accelerator goes to the CPU.
//   2. One with whose operands the accelerator would hold more than `pressure` of its memory does
//      too. Held is what tasks there have used: a weight from its first use to the end, a temporary
//      until the last task that uses it.
//   3. All others go to the accelerator.

#include "graph/placement/thresholds.h"

#include <vector>

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kCpu;

// What lies in the accelerator's memory while the tasks go by.
class HeldBytes {
 public:
  HeldBytes(const Graph& graph, const TaskGraph& tasks)
      : graph_(graph), tasks_(tasks), last_use_(graph.buffers.size()), is_held_(graph.buffers.size()) {
    for (uint32_t t = 0; t < tasks.size(); ++t) {
      for (const Use* use = tasks.begin(tasks.tasks[t]); use != tasks.end(tasks.tasks[t]); ++use) {
        last_use_[use->buffer] = t;
      }
    }
  }

  uint64_t with(const Task& task) const {
    uint64_t bytes = bytes_;
    for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
      if (use->in_memory() && is_held_[use->buffer] == 0) bytes += graph_.buffers[use->buffer].bytes;
    }
    return bytes;
  }

  void add(const Task& task) {
    bytes_ = with(task);
    for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
      if (use->in_memory()) is_held_[use->buffer] = 1;
    }
  }

  // What this task was the last to use, wherever it ran.
  void drop(uint32_t number) {
    const Task& task = tasks_.tasks[number];
    for (const Use* use = tasks_.begin(task); use != tasks_.end(task); ++use) {
      const Buffer& buffer = graph_.buffers[use->buffer];
      const bool stays = buffer.escapes || buffer.valid_on != 0;
      if (stays || last_use_[use->buffer] != number || is_held_[use->buffer] == 0) continue;
      is_held_[use->buffer] = 0;
      bytes_ -= buffer.bytes;
    }
  }

 private:
  const Graph& graph_;
  const TaskGraph& tasks_;
  std::vector<uint32_t> last_use_;  // per buffer: a task
  std::vector<uint8_t> is_held_;    // per buffer
  uint64_t bytes_ = 0;
};

void decide(Task& task, DeviceIndex device, Reason reason) {
  task.allowed = backend::only(device);
  task.reason = reason;
}

}  // namespace

void decide_by_thresholds(const Graph& graph, const PlanOptions& options, TaskGraph& tasks) {
  const DeviceIndex there = tasks.accelerator;
  const Thresholds& thresholds = options.thresholds;
  const double capacity = static_cast<double>(options.machine[there].bytes);  // 0: not limited
  HeldBytes held(graph, tasks);
  for (uint32_t t = 0; t < tasks.size(); ++t) {
    Task& task = tasks.tasks[t];
    if (task.has_choice()) {
      const bool fits = capacity == 0 || static_cast<double>(held.with(task)) <= thresholds.pressure * capacity;
      if (task.seconds[kCpu] < thresholds.time_ratio * task.seconds[there]) {
        decide(task, kCpu, Reason::kThreshold);
      } else if (!fits) {
        decide(task, kCpu, Reason::kNoMemory);
      } else {
        decide(task, there, Reason::kFaster);
      }
    }
    if (backend::contains(task.allowed, there)) held.add(task);
    held.drop(t);
  }
}

}  // namespace hetero::graph
