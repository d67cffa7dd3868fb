// VirtualClock: when the commands of a SimDevice begin and end, if each takes exactly its expected
// time.
//
// It is a discrete-event simulation. It runs when a command is submitted, in the order of
// submission, from durations alone. The workers' real times have no influence, so a program has the
// same times in every run and on every machine. The rules are those of graph/cost/simulate.h:
// - A command begins once its queue is free and the host has submitted it: max(queue, host).
// - record notes the queue's time; wait raises the queue's time to the noted one.
// - An urgent copy begins at once and delays the other queue of its direction by its own time.
// - Tasks of several compute queues share the device (backend/device/compute_engine.h).
// - The host advances by its own work and by waiting for queues and events. Submitting takes it no
//   time.
//
// Invariant: no clock goes back, except that all begin at 0 again with reset().
// Thread safety: none; the lock of the SimDevice guards it.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "backend/base/random.h"
#include "backend/device/compute_engine.h"
#include "backend/device/device.h"

namespace hetero::backend {

// A queue of one of the devices that share a clock.
struct ClockQueue {
  QueueKind kind;
  size_t device = 0;

  ClockQueue(QueueKind queue_kind, size_t number = 0) : kind(queue_kind), device(number) {}
  size_t index() const { return device * kQueueKinds + static_cast<size_t>(kind); }
};

// What a queue did from `begin` to `end`, in virtual seconds.
struct SimSpan {
  QueueKind queue = QueueKind::kCompute;
  bool is_copy = false;
  double begin = 0;
  double end = 0;
  size_t bytes = 0;   // of a copy
  size_t device = 0;  // of the machine's simulated ones

  bool operator==(const SimSpan&) const = default;
};

class VirtualClock {
 public:
  static constexpr size_t kMostSpans = 1'000'000;

  // A noted time. It counts as 0 after the next reset().
  struct Moment {
    double seconds = 0;
    uint64_t reset = 0;
  };

  // Multiplies every duration by a factor in [1 - spread, 1 + spread), which the seed, the queue
  // and the queue's number of durations determine, and by `slowdown` once `slowdown_after` seconds
  // have passed. REQUIRES: 0 <= spread < 1.
  explicit VirtualClock(uint64_t seed = 0, double spread = 0, double slowdown = 1, double slowdown_after = 0,
                        size_t devices = 1)
      : seed_(seed),
        spread_(spread),
        slowdown_(slowdown),
        slowdown_after_(slowdown_after),
        queues_(devices * kQueueKinds),
        engines_(devices),
        durations_(devices * kQueueKinds) {}

  // Returns the time that it takes, including the factor and the waits for concurrent tasks. A
  // command without a duration takes no time and leaves no span.
  double run(ClockQueue queue, double seconds, double utilization = 1) {
    return run(queue, seconds, utilization, false, 0);
  }
  double copy(ClockQueue queue, double seconds, size_t bytes) { return run(queue, seconds, 1, true, bytes); }
  Moment record(ClockQueue queue) { return {start(queue), reset_}; }
  void wait(ClockQueue queue, Moment moment) {
    const double begin = start(queue);
    queues_[queue.index()] = std::max(begin, seconds_of(moment));
  }

  // The queue waits until this time.
  void hold(ClockQueue queue, double until) { queues_[queue.index()] = std::max(start(queue), until); }

  void advance_host(double seconds) { host_ += std::max(0.0, seconds); }
  void host_waits(ClockQueue queue) { host_ = std::max(host_, queue_seconds(queue)); }
  void host_waits(Moment moment) { host_ = std::max(host_, seconds_of(moment)); }

  double host_seconds() const { return host_; }
  // When the queue is done with what was submitted.
  double queue_seconds(ClockQueue queue) const { return queues_[queue.index()]; }
  bool is_current(Moment moment) const { return moment.reset == reset_; }

  void reset() {
    std::ranges::fill(queues_, 0);
    host_ = 0;
    std::ranges::fill(durations_, 0);
    for (ComputeEngine& engine : engines_) engine.reset();
    spans_.clear();
    ++reset_;
  }

  void record_spans(bool on) { records_spans_ = on; }
  // In the order of submission; the oldest are dropped beyond kMostSpans.
  std::vector<SimSpan> spans() const { return {spans_.begin(), spans_.end()}; }

 private:
  double run(ClockQueue queue, double seconds, double utilization, bool is_copy, size_t bytes) {
    const size_t q = queue.index();
    const double begin = start(queue);
    const double duration = std::max(0.0, seconds) * next_factor(q, begin);
    if (!(duration > 0)) return 0;
    if (is_compute(queue.kind)) {
      queues_[q] = engines_[queue.device].run(begin, duration, std::clamp(utilization, 0.0, 1.0));
    } else {
      queues_[q] = begin + duration;
    }
    // The link does one thing at a time: a copy that yields to an urgent one is done later by as
    // much.
    double& other = queues_[ClockQueue(yielding(queue.kind), queue.device).index()];
    if (yielding(queue.kind) != queue.kind && other > begin) other += duration;
    if (records_spans_) {
      if (spans_.size() == kMostSpans) spans_.pop_front();
      spans_.push_back({queue.kind, is_copy, begin, queues_[q], bytes, queue.device});
    }
    return queues_[q] - begin;
  }
  double start(ClockQueue queue) {
    double& free = queues_[queue.index()];
    free = std::max(free, host_);
    return free;
  }
  double seconds_of(Moment moment) const { return is_current(moment) ? moment.seconds : 0; }
  double next_factor(size_t queue, double begin) {
    const double slowdown = begin < slowdown_after_ ? 1 : slowdown_;
    if (spread_ == 0) return slowdown;
    const uint64_t before = durations_[queue]++;
    const auto words = philox(seed_, before * queues_.size() + queue);
    return slowdown * (1 + spread_ * (2 * uniform_double(words[0], words[1]) - 1));
  }

  const uint64_t seed_;
  const double spread_;
  const double slowdown_;
  const double slowdown_after_;
  std::vector<double> queues_;          // when each is free
  std::vector<ComputeEngine> engines_;  // per device: what its compute queues share
  double host_ = 0;
  std::vector<uint64_t> durations_;  // per queue
  uint64_t reset_ = 0;               // how often
  bool records_spans_ = false;
  std::deque<SimSpan> spans_;
};

}  // namespace hetero::backend
