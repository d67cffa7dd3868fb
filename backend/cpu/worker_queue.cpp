#include "backend/cpu/worker_queue.h"

#include <pthread.h>

#include <condition_variable>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/base/blocked_signals.h"
#include "backend/base/parallel.h"
#include "backend/base/ring.h"
#include "backend/base/spin_lock.h"

namespace hetero::backend {

// ---- events -------------------------------------------------------------------------------------

// Waits by a number in memory: a condition that a thread of the parent waits for cannot be
// destroyed in a forked child.
class CpuEvent::Mark final : public Event {
 public:
  bool query() const override { return done_.load(std::memory_order_acquire) != 0 || is_forked(); }
  Status synchronize() override {
    while (!query()) done_.wait(0, std::memory_order_acquire);
    return Status();
  }
  void complete() {
    done_.store(1, std::memory_order_release);
    done_.notify_all();
  }

 private:
  // Its thread is the parent's.
  bool is_forked() const { return fork_generation() != generation_; }

  const int generation_ = fork_generation();
  std::atomic<int> done_{0};
};

std::shared_ptr<CpuEvent::Mark> CpuEvent::record() const {
  const std::lock_guard lock(mutex_);
  return record_;
}

void CpuEvent::set_record(std::shared_ptr<Mark> mark) {
  const std::lock_guard lock(mutex_);
  record_ = std::move(mark);
}

bool CpuEvent::query() const {
  const std::shared_ptr<Mark> mark = record();
  return mark == nullptr || mark->query();
}

Status CpuEvent::synchronize() {
  const std::shared_ptr<Mark> mark = record();
  return mark == nullptr ? Status() : mark->synchronize();
}

std::shared_ptr<Event> CpuEvent::last_record() {
  std::shared_ptr<Mark> mark = record();
  // An event that was never recorded is done.
  if (mark == nullptr) return std::make_shared<CpuEvent>();
  return mark;
}

// ---- the thread ---------------------------------------------------------------------------------

struct WorkerQueue::Command {
  Task task = {};                                  // where its function is not null
  CopyRange range = {};                            // where there are bytes
  std::shared_ptr<CpuEvent::Mark> mark = nullptr;  // is done
  std::shared_ptr<Event> event = nullptr;          // is waited for
};

// The thread of one process, and what was submitted to it.
struct WorkerQueue::Thread {
  const int generation = fork_generation();
  std::mutex mutex;
  // All below: guarded by mutex.
  std::condition_variable submitted;
  std::condition_variable completed;
  Ring<Command> commands;
  uint64_t submissions = 0;
  uint64_t completions = 0;
  bool stopping = false;
  std::thread thread;

  bool is_forked() const { return fork_generation() != generation; }

  void work() {
    pthread_setname_np(pthread_self(), "cpu-worker");
    // A host task uses one core: a pool of threads for this one would be in the way of others.
    use_thread_count(1);
    std::unique_lock lock(mutex);
    while (true) {
      submitted.wait(lock, [this] { return !commands.empty() || stopping; });
      if (commands.empty()) return;
      {
        const Command command = commands.pop_front();
        lock.unlock();
        run(command);
        // What the command owns is gone before it counts as done.
      }
      lock.lock();
      ++completions;
      completed.notify_all();
    }
  }

  static void run(const Command& command) {
    if (command.task.run != nullptr) command.task.run(command.task.context);
    if (command.range.bytes != 0) std::memmove(command.range.destination, command.range.source, command.range.bytes);
    // A device that fails says so where its own work is waited for.
    if (command.event != nullptr) (void)command.event->synchronize();
    if (command.mark != nullptr) command.mark->complete();
  }
};

WorkerQueue::~WorkerQueue() {
  Thread* const own = thread();
  // A parent's thread does not exist here. Neither joining it nor destroying what it waited for
  // would end, so they are leaked.
  if (own == nullptr) return;
  {
    const std::lock_guard lock(own->mutex);
    own->stopping = true;
    own->submitted.notify_one();
  }
  if (own->thread.joinable()) own->thread.join();
  delete own;
}

WorkerQueue::Thread* WorkerQueue::thread() const {
  Thread* const found = thread_.load(std::memory_order_acquire);
  return found == nullptr || found->is_forked() ? nullptr : found;
}

Result<WorkerQueue::Thread*> WorkerQueue::started_thread() {
  Thread* found = thread_.load(std::memory_order_acquire);
  while (found == nullptr || found->is_forked()) {
    auto made = std::make_unique<Thread>();
    if (thread_.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) found = made.release();
  }
  const std::lock_guard lock(found->mutex);
  if (found->thread.joinable()) return found;
  try {
    const BlockedSignals blocked;
    found->thread = std::thread([found] { found->work(); });
  } catch (const std::system_error& error) {
    return Status(ErrorClass::kResource, std::string("cpu: cannot start a thread: ") + error.what());
  }
  return found;
}

Status WorkerQueue::submit(Command command) {
  Result<Thread*> started = started_thread();
  if (!started.ok()) return started.status();
  Thread& thread = *started.value();
  const std::lock_guard lock(thread.mutex);
  thread.commands.push_back(std::move(command));
  ++thread.submissions;
  thread.submitted.notify_one();
  return Status();
}

// ---- the queue ----------------------------------------------------------------------------------

Status WorkerQueue::launch(Task task) {
  const Status status = submit({.task = task});
  if (status.ok()) counters_.count_launch();
  return status;
}

Status WorkerQueue::copy(void* destination, const void* source, size_t bytes) {
  if (bytes == 0) return Status();
  return submit({.range = {destination, source, bytes}});
}

Status WorkerQueue::record(Event& event) {
  auto* const own = dynamic_cast<CpuEvent*>(&event);
  if (own == nullptr) return Status(ErrorClass::kUsage, "a cpu queue can record only events that the cpu created");
  auto mark = std::make_shared<CpuEvent::Mark>();
  const Status status = submit({.mark = mark});
  if (!status.ok()) return status;
  own->set_record(std::move(mark));
  counters_.count_record();
  return Status();
}

Status WorkerQueue::wait(Event& event) {
  counters_.count_wait();
  if (event.query()) return Status();
  if (std::shared_ptr<Event> record = event.last_record()) return submit({.event = std::move(record)});
  return event.synchronize();
}

Status WorkerQueue::synchronize() {
  Thread* const own = thread();
  if (own == nullptr) return Status();
  std::unique_lock lock(own->mutex);
  if (std::this_thread::get_id() == own->thread.get_id()) {
    return Status(ErrorClass::kUsage, "a task must not synchronize with the queue it runs on");
  }
  const uint64_t target = own->submissions;
  own->completed.wait(lock, [&] { return own->completions >= target; });
  return Status();
}

}  // namespace hetero::backend
