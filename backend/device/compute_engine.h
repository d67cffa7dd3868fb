// ComputeEngine: predicts the end of tasks that several compute queues of one device run
// concurrently.
//
// A task has a time and a utilization, the share of the device that it keeps busy. Concurrent tasks
// do not slow each other as long as their shares fit into the device. Beyond that, the task that
// was submitted first goes first, and the later one gets what is left. NVIDIA's GPUs were found to
// follow this "leftover" policy. So two tasks that each fill the device take as long side by side
// as one after the other. Small ones, which mostly wait for their launch, take as long as one.
// graph/cost/simulate.h and the virtual clock of `sim` both use it.
// Source: T. Amert et al., "GPU Scheduling on the NVIDIA TX2", RTSS 2017, and sources there.
//
// The remaining share of the device is a step function of time, which a task lowers. Times follow
// from durations and the order of the calls alone.
//
// Thread safety: none.

#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace hetero::backend {

class ComputeEngine {
 public:
  // Runs a task that begins then, and alone would take `seconds`; returns when it ends. REQUIRES: 0
  // <= utilization <= 1.
  double run(double begin, double seconds, double utilization) {
    const double end = end_of(begin, seconds, utilization);
    if (utilization <= 0 || end <= begin) return end;
    forget_oldest();
    const size_t first = split(begin);
    const size_t last = split(end);
    for (size_t s = first; s < last; ++s) {
      steps_[s].left -= std::min(utilization, steps_[s].left);
      if (steps_[s].left < kNothing) steps_[s].left = 0;
    }
    return end;
  }

  // Predicts the same without running the task.
  double end_of(double begin, double seconds, double utilization) const {
    const double work = seconds * utilization;
    double rest = work;
    bool slowed = false;
    double time = begin;
    for (size_t s = step_at(begin); rest > kNothing * work; ++s) {
      const double until = s + 1 < steps_.size() ? steps_[s + 1].begin : std::numeric_limits<double>::infinity();
      const double rate = std::min(utilization, steps_[s].left);
      slowed |= rate < utilization;
      if (rate > 0 && rate * (until - time) >= rest) {
        time += rest / rate;
        break;
      }
      rest -= rate * (until - time);
      time = until;
    }
    return slowed ? std::max(time, begin + seconds) : begin + seconds;
  }

  void reset() { steps_.assign(1, {0, 1}); }

 private:
  struct Step {
    double begin;
    double left;  // of the device, until the next step; behind the last one all of it
  };
  // Shares, and parts of a task, that rounding leaves.
  static constexpr double kNothing = 1e-9;
  // Before the first step that is kept, as much is left as in it.
  static constexpr size_t kMostSteps = 2048;

  // The last that begins no later. Tasks mostly begin near the end.
  size_t step_at(double time) const {
    size_t s = steps_.size() - 1;
    while (s > 0 && steps_[s].begin > time) --s;
    return s;
  }
  // The step that begins then, made if there is none.
  size_t split(double time) {
    const size_t s = step_at(time);
    if (steps_[s].begin >= time) return s;
    steps_.insert(steps_.begin() + static_cast<std::ptrdiff_t>(s + 1), {time, steps_[s].left});
    return s + 1;
  }
  void forget_oldest() {
    steps_.reserve(kMostSteps + 2);
    if (steps_.size() <= kMostSteps) return;
    steps_.erase(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(kMostSteps / 2));
  }

  std::vector<Step> steps_{{0, 1}};
};

}  // namespace hetero::backend
