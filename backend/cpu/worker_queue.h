// WorkerQueue: the queue of the CPU whose tasks run on a thread of its own, and the CPU's events.
//
// Host tasks, such as decoding a file, take long and use one core. On this queue they overlap with
// what accelerators do, and with what the CPU does on the submitting thread. Tasks, copies and
// records run one by one in the order of submission. A wait for an event of another device holds
// the queue's thread up, where the event can be captured (Event::last_record); otherwise it holds
// the caller up.
//
// Thread safety: any thread. Waiting for an event inside a task of this queue is the one exception:
// nothing would ever record it.
// Ownership: the thread starts with the first command. The destructor runs what was submitted and
// joins it. The registry's CpuDevice is leaked, and a sleeping thread does not keep a process from
// exiting. A forked child begins with an empty queue and a thread of its own. What was submitted
// before the fork runs in the parent only, and its events count as done in the child.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "backend/device/atomic_counters.h"
#include "backend/device/device.h"

namespace hetero::backend {

// What an inline queue has recorded is done when record returns. What the worker queue has recorded
// is done when its thread comes to it.
class CpuEvent final : public Event {
 public:
  // One record of the worker queue.
  class Mark;

  bool query() const override;
  Status synchronize() override;
  // Never null.
  std::shared_ptr<Event> last_record() override;

  // Null: recorded by an inline queue.
  void set_record(std::shared_ptr<Mark> mark);

 private:
  std::shared_ptr<Mark> record() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Mark> record_;  // guarded by mutex_; null where the last record is done
};

class WorkerQueue final : public Queue {
 public:
  explicit WorkerQueue(AtomicCounters& counters) : counters_(counters) {}
  ~WorkerQueue() override;

  // Errors of all calls: kResource if the system grants no thread, kUsage.
  Status launch(Task task) override;
  Status copy(void* destination, const void* source, size_t bytes) override;
  Status record(Event& event) override;
  Status wait(Event& event) override;
  Status synchronize() override;

 private:
  struct Command;
  struct Thread;

  // That of this process, which may be a forked child; null if nothing was submitted in it.
  Thread* thread() const;
  Result<Thread*> started_thread();
  Status submit(Command command);

  AtomicCounters& counters_;
  std::atomic<Thread*> thread_{nullptr};
};

}  // namespace hetero::backend
