// Rollout: how long tasks take on given devices in a given order, without making a plan.
//
// It follows the rules of the program that the passes would make, apart from memory. Each device
// runs its tasks one after the other, in the given order. A link moves one value at a time each
// way, small results of tasks first. A value is copied when the first task needs it on a device,
// and a write makes other copies stale. Copies that pay for many runs, such as those of weights,
// are no part of a run: their share is added to the time of the whole. A value that the program
// updates starts where it was left (TaskGraph::begins_on).
//
// So it gives the result of simulate() for the laid-out program
// (tests/graph/placement/placement_test.cpp) at a hundredth of the price, which the search can
// afford.
//
// Thread safety: a Rollout belongs to one planning thread.

#pragma once

#include <span>
#include <vector>

#include "graph/placement/task_graph.h"

namespace hetero::graph {

class Rollout {
 public:
  explicit Rollout(const TaskGraph& tasks) : tasks_(tasks) {}

  // Seconds until the last task is done, and the shares of amortized copies. `devices` per task;
  // `order` of tasks.
  double run(std::span<const backend::DeviceIndex> devices, std::span<const uint32_t> order);

  // The same in steps. What the program updates begins where it is first needed.
  void begin();
  // When the task would be done there, if it came next.
  double finish(uint32_t task, backend::DeviceIndex device) const;
  void place(uint32_t task, backend::DeviceIndex device);
  double seconds() const { return last_ + shares_; }

 private:
  struct State {
    backend::DeviceSet valid_on;
    bool made;  // by a task
  };
  // Of a buffer's bytes on a device.
  struct Times {
    double written = 0;  // when the last write of the bytes is done
    double touched = 0;  // the last touch of them
  };

  Times& times_of(BufferId buffer, backend::DeviceIndex device) {
    return times_[size_t{buffer} * tasks_.device_count + device];
  }
  const Times& times_of(BufferId buffer, backend::DeviceIndex device) const {
    return times_[size_t{buffer} * tasks_.device_count + device];
  }

  bool is_amortized(const Use& use, backend::DeviceIndex device) const {
    return device != backend::kCpu && tasks_.values[use.buffer].amortized;
  }
  bool is_urgent(const Use& use) const { return states_[use.buffer].made && tasks_.values[use.buffer].small; }

  const TaskGraph& tasks_;
  std::vector<State> states_;  // per buffer
  std::vector<Times> times_;   // per buffer and device
  double device_[backend::kMostDevices] = {};
  double link_[backend::kMostDevices] = {};    // to the device
  double urgent_[backend::kMostDevices] = {};  // the same, of copies that go first
  double last_ = 0;
  double shares_ = 0;  // of amortized copies
};

}  // namespace hetero::graph
