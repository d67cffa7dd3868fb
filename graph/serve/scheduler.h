// Scheduler: takes requests from any thread and runs them on lanes, each with its own cores.
//
// A lane is a CoreGroup (backend/threads/core_group.h). A free lane takes the request that has
// waited longest. So there are as many running requests as lanes; with one lane of all cores, one
// request uses them all. The caller defines a request, a class derived from Request, and the
// handler that runs it.
//
//   struct Translate : Request { std::string text, result; };
//   auto scheduler = Scheduler::create({lane0, lane1}, {.capacity = 64},
//       [&](size_t lane, Request& request) { return executors[lane].run(request); });
//   auto request = std::make_shared<Translate>();
//   Status accepted =
//       scheduler.value()->submit(request, {.deadline = Request::Clock::now() + 50ms});
//   Status status = request->wait();
//
// Order is first come, first served. The wait of a request is then known when it arrives, and no
// later request can delay it for ever, as with priorities. An urgent request sets a deadline. If it
// has not begun by then, it never runs, and the next request takes its place.
//
// Back-pressure: at most `capacity` requests wait for a lane. More are refused (kRefuse), or their
// submit() waits for room (kWait), in the same line.
//
// Cancellation and deadlines: a waiting request ends at once with kCancelled. A running one is
// asked to stop: the handler checks should_stop(), or passes stop() on (BoundProgram::run), and
// returns kCancelled. If the handler ignores that, a cancelled request ends as if it had not been
// cancelled. A request past its deadline is late however it ends, unless it fails. One thread of
// the scheduler watches all deadlines, starting with the first.
//
// Errors: the handler's status or exception is the status of its request and of no other. After
// warm-up, only errors take memory from the heap.
//
// Thread safety: any thread. Fork: a child may only destroy its parent's schedulers.
// Ownership: the scheduler shares a request from submit() until it has ended, so the caller may
// drop it at any time. It borrows its lanes: they outlive it.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/base/status.h"
#include "backend/threads/core_group.h"

namespace hetero::graph {

struct SchedulerCore;  // scheduler.cpp

enum class RequestState : uint8_t {
  kNew,        // not submitted
  kWaiting,    // for room or for a lane
  kRunning,    // on a lane
  kDone,       // the handler has returned; the status is its own
  kCancelled,  // by cancel(), or by the scheduler's end
  kLate,       // its deadline passed before it was done, whatever a handler has made of it since
  kRefused,    // there was no room, or the scheduler was closed
};

// One request. It may be submitted again after it has ended and the calls of its functions, and of
// submit(), have returned.
class Request {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  Request();
  virtual ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  RequestState state() const { return state_.load(std::memory_order_acquire); }
  bool has_ended() const { return state() >= RequestState::kDone; }
  // REQUIRES: has_ended().
  const Status& status() const { return status_; }

  // Blocks until the request has ended, and returns its status. In a forked child: kDevice.
  // REQUIRES: not called on a lane of the same scheduler, because the request may be waiting for
  // that lane.
  Status wait();
  // Waits until `limit` at most; whether the request has ended.
  bool wait_until(Clock::time_point limit);
  bool wait_for(Clock::duration duration) { return wait_until(Clock::now() + duration); }

  // Cancels. Before submit(): the request ends as soon as it is submitted. After its end: does
  // nothing.
  void cancel();

  // For the handler: whether to stop, after cancel() or the deadline.
  bool should_stop();
  // Not 0 once the request was cancelled or its deadline has passed.
  const std::atomic<int32_t>& stop() const { return stop_; }

 protected:
  // Called once for each submit() without error, when the request has ended: on the lane, on the
  // thread that watches deadlines, or in the function that ended it (cancel(), close(), another
  // submit()). No lock is held. Threads in wait() may return earlier. It must not block, and not
  // destroy the scheduler.
  virtual void on_end() noexcept {}

 private:
  friend class Scheduler;
  friend struct SchedulerCore;
  enum StopReason : int32_t { kGoOn = 0, kStopCancelled = 1, kStopLate = 2 };

  Status begin(const std::shared_ptr<SchedulerCore>& core, Clock::time_point deadline);
  void end(RequestState state, Status status);
  // Waits until the request has ended or, with `or_admitted`, has its place in the line. False if
  // that did not happen by `limit`.
  bool wait_until(Clock::time_point limit, bool or_admitted);

  const int fork_generation_;
  std::atomic<RequestState> state_{RequestState::kNew};
  std::atomic<int32_t> stop_{kGoOn};   // the first reason holds
  std::atomic<bool> admitted_{false};  // it is one of those that may wait; submit() returns
  Status status_;                      // written before the end

  std::mutex mutex_;                     // taken after SchedulerCore::mutex
  std::condition_variable changed_;      // state_ or admitted_
  Clock::time_point deadline_ = kNever;  // written before the request is in the line
  // Guarded by mutex_; null before submit() and after the end.
  std::shared_ptr<SchedulerCore> core_;

  // The line of waiting requests: guarded by SchedulerCore::mutex.
  bool in_line_ = false;
  std::shared_ptr<Request> self_;
  Request* previous_ = nullptr;
  Request* next_ = nullptr;
};

struct RequestOptions {
  Request::Clock::time_point deadline = Request::kNever;
};

#define HETERO_SCHEDULER_COUNTERS(X)                                                  \
  X(submitted, "accepted; each becomes one of completed, failed, cancelled and late") \
  X(completed, "the handler returned no error")                                       \
  X(failed, "the handler returned or threw one")                                      \
  X(cancelled, "cancelled before or while they ran")                                  \
  X(late, "past their deadline")                                                      \
  X(refused, "submit() returned an error")                                            \
  X(waiting, "waiting now")                                                           \
  X(most_waiting, "the most that ever waited")

struct SchedulerCounters {
#define X(name, text) int64_t name = 0;
  HETERO_SCHEDULER_COUNTERS(X)
#undef X

  int64_t ended() const { return completed + failed + cancelled + late; }
};

class Scheduler {
 public:
  enum class WhenFull { kWait, kRefuse };
  enum class WhenClosed { kCancel, kRun };

  struct Options {
    size_t capacity = 64;  // requests that may wait, beside those for which a lane is free
    WhenFull when_full = WhenFull::kWait;
  };
  // Runs a request on a lane's thread; `lane` is its number. Called for several requests at once,
  // but for one at a time per lane.
  using Handler = std::function<Status(size_t lane, Request& request)>;

  // Errors: kUsage without lanes, capacity or handler, or with a lane that is null or named twice.
  static Result<std::unique_ptr<Scheduler>> create(std::vector<backend::CoreGroup*> lanes, Options options,
                                                   Handler handler);
  // Closes, cancels waiting requests unless close() was called before, and waits for running ones.
  // REQUIRES: no thread is in submit(); not called on a lane.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Puts the request at the end of the line. With kWait, waits for room until the deadline or
  // cancel(); a thread of the scheduler itself is refused instead. After an error the request has
  // ended with it, except for kUsage, and kDevice in a forked child, which leave it unchanged.
  // Errors: kResource without room; kCancelled if the request is cancelled or late already, or the
  // scheduler is closed; kDevice if the system starts no thread for the first deadline, or in a
  // forked child; kUsage if the request is waiting or running.
  Status submit(std::shared_ptr<Request> request, RequestOptions options = {});

  // Accepts nothing from now on. Waiting requests, including those whose submit() waits for room,
  // end with kCancelled (kCancel) or still run (kRun). Does not wait; may be called again.
  void close(WhenClosed waiting);
  // Blocks until nothing waits or runs. REQUIRES: not called on a lane.
  void wait_idle();

  SchedulerCounters counters() const;

 private:
  explicit Scheduler(std::shared_ptr<SchedulerCore> core);

  std::shared_ptr<SchedulerCore> core_;
};

}  // namespace hetero::graph
