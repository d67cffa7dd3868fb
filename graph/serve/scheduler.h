// Scheduler: requests from any thread, run on lanes that each have cores of their own.
//
// A lane is a CoreGroup (backend/threads/core_group.h). A lane that is free takes the request that
// waits longest, so as many requests run at once as there are lanes; with one lane that has all
// cores, one request uses them all. What a request is and how it is run is the caller's: a class
// derived from Request, and a handler.
//
//   struct Translate : Request { std::string text, result; };
//   auto scheduler = Scheduler::create({lane0, lane1}, {.capacity = 64}, [&](size_t lane, Request& request) { return executors[lane].run(request); });
//   auto request = std::make_shared<Translate>();
//   Status accepted = scheduler.value()->submit(request, {.deadline = Request::Clock::now() + 50ms});
//   Status status = request->wait();
//
// Order is first come, first served: what a request may have to wait for is known when it comes,
// and nothing that comes later can delay it for ever, as priorities or deadlines could. Whoever is
// in a hurry says so by a deadline: a request that is not begun by then is not run at all, and
// leaves its place to the others.
//
// Back-pressure: at most `capacity` requests wait for a lane to be free. More are refused
// (kRefuse), or their submit() waits for room (kWait), in the same line.
//
// Cancellation and deadlines: a request that waits ends at once with kCancelled. One that runs is
// asked to stop: the handler looks at should_stop(), or hands stop() to what looks at it
// (BoundProgram::run), and returns an error of kCancelled. Where a handler does not look, a request
// that was cancelled ends as if nobody had asked; one whose deadline has passed is late however it
// ends, unless it fails. Deadlines are noticed by a thread of the scheduler's, one for all
// requests, which begins with the first deadline.
//
// Errors: what a handler returns or throws is the status of its request and of no other. After
// warm-up nothing here takes memory from the heap, save for errors.
//
// Thread safety: any thread. Fork: a child can use no scheduler of its parent, but destroy it.
// Ownership: the scheduler shares a request from submit() until it has ended, so the caller may
// drop it any time. It borrows its lanes: they outlive it.

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

#include "backend/threads/core_group.h"
#include "backend/base/status.h"

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

// One request. It may be submitted again when it has ended and the calls of its functions, and of
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

  // Blocks the calling thread until the request has ended, and returns its status. REQUIRES: not
  // called by what runs on a lane of the same scheduler, for the request may be waiting for that
  // lane. In a forked child: kDevice.
  Status wait();
  // The same, but not beyond `limit`; whether the request has ended.
  bool wait_until(Clock::time_point limit);
  bool wait_for(Clock::duration duration) { return wait_until(Clock::now() + duration); }

  // Nobody wants the result any more. Before submit(): the request ends as soon as it is submitted.
  // After its end: nothing.
  void cancel();

  // For the handler: whether to stop, because of cancel() or the deadline.
  bool should_stop();
  // Not 0 once the request was cancelled or its deadline passed.
  const std::atomic<int32_t>& stop() const { return stop_; }

 protected:
  // Called once for each submit() that returned no error, when the request has ended: on the lane,
  // on the thread that watches deadlines, or in the function that ended it (cancel(), close(),
  // submit() of another). No lock is held. Threads in wait() may be gone before. It must not block,
  // and not destroy the scheduler.
  virtual void on_end() noexcept {}

 private:
  friend class Scheduler;
  friend struct SchedulerCore;
  enum StopReason : int32_t { kGoOn = 0, kStopCancelled = 1, kStopLate = 2 };

  Status begin(const std::shared_ptr<SchedulerCore>& core, Clock::time_point deadline);
  void end(RequestState state, Status status);
  // Waits until the request has ended, or, with `or_admitted`, has its place in the line; false
  // where that did not happen until `limit`.
  bool wait_until(Clock::time_point limit, bool or_admitted);

  const int fork_generation_;
  std::atomic<RequestState> state_{RequestState::kNew};
  std::atomic<int32_t> stop_{kGoOn};   // the first reason holds
  std::atomic<bool> admitted_{false};  // it is one of those that may wait; submit() returns
  Status status_;                      // written before the end

  std::mutex mutex_;                     // taken after SchedulerCore::mutex
  std::condition_variable changed_;      // state_ or admitted_
  Clock::time_point deadline_ = kNever;  // written before the request is in the line
  std::shared_ptr<SchedulerCore> core_;  // guarded by mutex_; null before submit() and after the end

  // The line of those that wait: guarded by SchedulerCore::mutex.
  bool in_line_ = false;
  std::shared_ptr<Request> self_;
  Request* previous_ = nullptr;
  Request* next_ = nullptr;
};

struct RequestOptions {
  Request::Clock::time_point deadline = Request::kNever;
};

struct SchedulerCounters {
  int64_t submitted = 0;  // accepted; each of these becomes one of completed, failed, cancelled and late
  int64_t completed = 0;  // the handler returned no error
  int64_t failed = 0;     // the handler returned or threw one
  int64_t cancelled = 0;
  int64_t late = 0;
  int64_t refused = 0;  // submit() returned an error, for whatever reason
  int64_t waiting = 0;  // now
  int64_t most_waiting = 0;

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
  // Runs a request on a lane's thread; the lane is its number. Called for several requests at once,
  // but for one at a time by each lane.
  using Handler = std::function<Status(size_t lane, Request& request)>;

  // Errors: kUsage without lanes, with a lane that is null or named twice, without capacity,
  // without a handler.
  static Result<std::unique_ptr<Scheduler>> create(std::vector<backend::CoreGroup*> lanes, Options options,
                                                   Handler handler);
  // Closes, cancelling what waits unless close() was called before, and waits for the rest.
  // REQUIRES: nobody is in submit(); not called on a lane.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Puts the request at the end of the line. With kWait, waits for room until the deadline, or
  // cancel(); a thread of the scheduler's own does not wait but is refused. Where an error is
  // returned, the request has ended with it. Errors: kResource where there is no room; kCancelled
  // for a request that is cancelled or late already, and where the scheduler is closed; kDevice
  // where the system starts no thread for the first deadline; and, with the request left as it was,
  // kUsage where it is waiting or running, kDevice in a forked child.
  Status submit(std::shared_ptr<Request> request, RequestOptions options = {});

  // From now on nothing is accepted. What waits ends with kCancelled (kCancel) or still runs
  // (kRun), submit() calls that wait for room included. Does not wait; may be called again.
  void close(WhenClosed waiting);
  // Blocks the calling thread until nothing waits or runs. REQUIRES: not called on a lane.
  void wait_idle();

  SchedulerCounters counters() const;

 private:
  explicit Scheduler(std::shared_ptr<SchedulerCore> core);

  std::shared_ptr<SchedulerCore> core_;
};

}  // namespace hetero::graph
