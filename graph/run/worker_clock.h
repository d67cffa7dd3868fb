// WorkerClock: the virtual time of the CPU's worker queue.
//
// A device that simulates time knows its own queues and the host (Device::has_virtual_clock). The
// worker queue is neither. Who submits a program to it tells this clock, by the rules of
// graph/cost/simulate.h: a task begins when the host has submitted it and the queue is free, and an
// event carries a time from the queue that records it to the one that waits.
//
// Thread safety: belongs to the thread that submits.

#pragma once

#include <algorithm>
#include <vector>

#include "backend/device/device.h"
#include "graph/ir/instruction.h"

namespace hetero::graph {

class WorkerClock {
 public:
  // `device`: of the simulated machine; null where time is real, and then nothing else does
  // anything.
  void begin(backend::Device* device, size_t events) {
    device_ = device;
    if (device_ == nullptr) return;
    seconds_ = std::max(seconds_, device_->host_seconds());
    recorded_.assign(events, {});
  }

  // When the worker queue is done with what was submitted.
  double seconds() const { return device_ == nullptr ? 0 : std::max(seconds_, device_->host_seconds()); }

  void run(double task_seconds) {
    if (device_ != nullptr) seconds_ = seconds() + task_seconds;
  }

  // `owner`: the device of the instruction's queue, and `kind`: that queue.
  void record(const Instruction& record, const backend::Device& owner, backend::QueueKind kind) {
    if (device_ == nullptr) return;
    const bool by_worker = record.queue == kWorkerQueue;
    const bool by_host = record.queue == kHostQueue;
    recorded_[record.index] = {by_worker ? seconds()
                               : by_host ? device_->host_seconds()
                                         : std::max(owner.queue_seconds(kind), device_->host_seconds()),
                               by_worker};
  }
  // After the wait was submitted.
  void wait(const Instruction& wait, backend::Device& owner, backend::QueueKind kind) {
    if (device_ == nullptr) return;
    const auto [at, by_worker] = recorded_[wait.index];
    if (wait.queue == kWorkerQueue) {
      seconds_ = std::max(seconds(), at);
    } else if (by_worker && wait.queue == kHostQueue) {
      host_waits(at);
    } else if (by_worker) {
      owner.hold_queue(kind, at);
    }
  }
  void worker_waits(double until) {
    if (device_ != nullptr) seconds_ = std::max(seconds(), until);
  }
  // The host waits until that time.
  void host_waits(double until) {
    if (device_ != nullptr) device_->advance_host(std::max(0.0, until - device_->host_seconds()));
  }

 private:
  struct Record {
    double seconds = 0;
    bool by_worker = false;
  };

  backend::Device* device_ = nullptr;
  double seconds_ = 0;
  std::vector<Record> recorded_;  // per event
};

}  // namespace hetero::graph
