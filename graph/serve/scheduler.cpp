// The way of a request:
//
// 1. submit() puts it into the line, a doubly linked list through the requests. The first of the
//    line are admitted: `capacity`, and one for each lane that is coming for the next request. For
//    the others, submit() waits for room.
// 2. An idle lane is sent for (serve() is submitted to its group). It takes the first request, runs
//    it, ends it, and comes again behind its group's other tasks.
// 3. The clock, a thread that begins with the first deadline, sleeps until the earliest one. It
//    takes late requests out of the line, and tells running ones to stop.
// 4. The function that takes a request out of the line ends it: a lane, the clock, cancel(),
//    close(), or a submit() that finds no room but late requests.
//
// Locks: SchedulerCore::mutex for the line and the lanes, then Request::mutex_ for threads that
// wait for one request. None is held while a handler or on_end() runs.

#include "graph/serve/scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/base/blocked_signals.h"
#include "backend/base/spin_lock.h"
#include "graph/ir/kernel_error.h"

namespace hetero::graph {
namespace {

Status forked_error() {
  return {ErrorClass::kDevice,
          "a request of the parent's scheduler cannot be used in a forked process; make a scheduler there"};
}
Status closed_error() { return {ErrorClass::kCancelled, "the scheduler was closed before the request ran"}; }

Status full_error(size_t capacity) {
  return {ErrorClass::kResource, "the scheduler has no room: " + std::to_string(capacity) +
                                     " requests wait already; submit again when one has ended, or raise the capacity"};
}

Status call(const Scheduler::Handler& handler, size_t lane, Request& request) {
  try {
    return handler(lane, request);
  } catch (const std::exception& error) {
    return {ErrorClass::kKernel, words_of(error), std::current_exception()};
  } catch (...) {
    return {ErrorClass::kKernel, "a handler threw an unknown exception", std::current_exception()};
  }
}

// The scheduler that the calling thread belongs to, as a lane or the clock: the thread must not
// wait for room there.
thread_local const SchedulerCore* part_of = nullptr;

}  // namespace

struct SchedulerCore {
  using Clock = Request::Clock;
  using StopReason = Request::StopReason;
  struct Lane {
    SchedulerCore* core;
    size_t number;
    backend::CoreGroup* group;
    // The lane's running request, if the clock has not seen its deadline pass. Guarded by the
    // core's mutex.
    Request* running = nullptr;
  };
  // Requests taken out of the line, to be ended when no lock is held; each still owns itself.
  struct Taken {
    Request* first = nullptr;
    std::shared_ptr<Request> pop() {
      if (first == nullptr) return nullptr;
      Request& request = *first;
      first = request.next_;
      return std::move(request.self_);
    }
  };
  static RequestState state_of(StopReason reason) {
    return reason == StopReason::kStopLate ? RequestState::kLate : RequestState::kCancelled;
  }
  static const char* what_happened(StopReason reason) {
    return reason == StopReason::kStopLate ? "the request's deadline passed" : "the request was cancelled";
  }
  static Status stopped_error(StopReason reason) {
    return {ErrorClass::kCancelled, std::string(what_happened(reason)) + " while it ran"};
  }
  static Status unrun_error(StopReason reason) {
    return {ErrorClass::kCancelled, std::string(what_happened(reason)) + " before it ran"};
  }

  SchedulerCore(const std::vector<backend::CoreGroup*>& groups, Scheduler::Options chosen, Scheduler::Handler run)
      : options(chosen), handler(std::move(run)) {
    for (size_t i = 0; i < groups.size(); ++i) lanes.push_back({.core = this, .number = i, .group = groups[i]});
    // The first lane is taken first.
    for (size_t i = groups.size(); i-- > 0;) idle_lanes.push_back(&lanes[i]);
  }

  const int fork_generation = backend::fork_generation();
  const Scheduler::Options options;
  const Scheduler::Handler handler;
  std::vector<Lane> lanes;

  std::mutex mutex;
  // Guarded by mutex.
  std::condition_variable lane_is_idle;
  // The last is taken. It was idle the shortest time: its caches are warm, and it may still spin.
  std::vector<Lane*> idle_lanes;
  size_t coming_lanes = 0;  // sent for, and not there yet
  Request* first = nullptr;
  Request* last = nullptr;
  // The first that is not admitted: it and all behind it are in submit().
  Request* first_outside = nullptr;
  size_t admitted = 0;
  size_t most_waiting = 0;
  // No request of the line has an earlier one.
  Clock::time_point earliest_deadline = Request::kNever;
  bool closed = false;
  std::condition_variable clock_wakeup;
  Clock::time_point clock_until = Request::kNever;  // when the clock looks again
  bool clock_ends = false;                          // requests that it has taken out of the line
  bool clock_stops = false;
  std::thread clock;

  std::atomic<int64_t> submitted{0};
  std::atomic<int64_t> completed{0};
  std::atomic<int64_t> failed{0};
  std::atomic<int64_t> cancelled{0};
  std::atomic<int64_t> late{0};
  std::atomic<int64_t> refused{0};

  bool is_forked() const { return backend::fork_generation() != fork_generation; }

  // The line. REQUIRES: the mutex is held.
  bool has_room() const { return !idle_lanes.empty() || admitted < options.capacity + coming_lanes; }
  void append(std::shared_ptr<Request> request);
  void count_in(Request& request);
  void admit_more();
  void unlink(Request& request);
  void take(Request& request, Taken& taken);
  void take_late(Clock::time_point now, Taken& taken);

  // REQUIRES, from here on: no lock is held. The outcome of a submit().
  struct Entry {
    RequestState state = RequestState::kWaiting;  // or that with which the request is refused
    Status refusal = {};
    bool admitted = false;
    Lane* lane = nullptr;  // to be sent for
    Taken late = {};
  };
  Entry enter(std::shared_ptr<Request> request);

  // Ends requests that are out of the line and have not run.
  void end_unrun(Request& request, RequestState state, Status status);
  void end_unrun(Request& request, StopReason reason);
  void end_late(Taken taken);
  void end_if_waiting(Request& request, StopReason reason);

  // The clock. REQUIRES of the first two: the mutex is held.
  Status start_clock();
  Clock::time_point next_deadline() const;
  void watch_clock();
  void stop_clock();

  // The lanes.
  void send_for(Lane& lane);
  void serve(Lane& lane);
  std::shared_ptr<Request> take_first(Lane& lane);
  void run(Lane& lane, Request& request);
  void leave(Lane& lane);
};

void SchedulerCore::append(std::shared_ptr<Request> request) {
  Request& entry = *request;
  entry.self_ = std::move(request);
  entry.in_line_ = true;
  entry.previous_ = last;
  entry.next_ = nullptr;
  (last == nullptr ? first : last->next_) = &entry;
  last = &entry;
  earliest_deadline = std::min(earliest_deadline, entry.deadline_);
}

void SchedulerCore::count_in(Request& request) {
  request.admitted_.store(true, std::memory_order_release);
  submitted.fetch_add(1, std::memory_order_relaxed);
  ++admitted;
  if (admitted > coming_lanes) most_waiting = std::max(most_waiting, admitted - coming_lanes);
}

void SchedulerCore::admit_more() {
  while (first_outside != nullptr && has_room()) {
    Request& request = *first_outside;
    first_outside = request.next_;
    const std::lock_guard lock(request.mutex_);
    count_in(request);
    request.changed_.notify_all();
  }
}

void SchedulerCore::unlink(Request& request) {
  if (&request == first_outside) first_outside = request.next_;
  if (request.admitted_.load(std::memory_order_relaxed)) --admitted;
  (request.previous_ == nullptr ? first : request.previous_->next_) = request.next_;
  (request.next_ == nullptr ? last : request.next_->previous_) = request.previous_;
  request.in_line_ = false;
  admit_more();
}

void SchedulerCore::take(Request& request, Taken& taken) {
  unlink(request);
  request.next_ = taken.first;
  taken.first = &request;
}

void SchedulerCore::take_late(Clock::time_point now, Taken& taken) {
  if (now < earliest_deadline) return;
  earliest_deadline = Request::kNever;
  for (Request* request = first; request != nullptr;) {
    Request* const next = request->next_;
    if (request->deadline_ <= now) {
      take(*request, taken);
    } else {
      earliest_deadline = std::min(earliest_deadline, request->deadline_);
    }
    request = next;
  }
}

SchedulerCore::Entry SchedulerCore::enter(std::shared_ptr<Request> request) {
  Entry entry;
  const auto refuse = [&](RequestState state, Status status) {
    entry.state = state;
    entry.refusal = std::move(status);
  };
  const std::lock_guard lock(mutex);
  if (request->should_stop()) {
    const auto reason = static_cast<StopReason>(request->stop_.load(std::memory_order_relaxed));
    refuse(state_of(reason), unrun_error(reason));
    return entry;
  }
  if (closed) {
    refuse(RequestState::kRefused, closed_error());
    return entry;
  }
  if (request->deadline_ != Request::kNever) {
    if (Status status = start_clock(); !status.ok()) {
      refuse(RequestState::kRefused, std::move(status));
      return entry;
    }
  }
  if (!has_room()) take_late(Clock::now(), entry.late);
  if (!has_room() && (options.when_full == Scheduler::WhenFull::kRefuse || part_of == this)) {
    refuse(RequestState::kRefused, full_error(options.capacity));
    return entry;
  }
  Request& appended = *request;
  append(std::move(request));
  if (appended.deadline_ < clock_until) clock_wakeup.notify_one();
  entry.admitted = has_room();
  if (!entry.admitted) {
    if (first_outside == nullptr) first_outside = &appended;
    return entry;
  }
  if (!idle_lanes.empty()) {
    entry.lane = idle_lanes.back();
    idle_lanes.pop_back();
    ++coming_lanes;
  }
  count_in(appended);
  return entry;
}

void SchedulerCore::end_unrun(Request& request, RequestState state, Status status) {
  const bool accepted = request.admitted_.load(std::memory_order_relaxed);
  (!accepted ? refused : state == RequestState::kLate ? late : cancelled).fetch_add(1, std::memory_order_relaxed);
  request.end(state, std::move(status));
}

void SchedulerCore::end_unrun(Request& request, StopReason reason) {
  end_unrun(request, state_of(reason), unrun_error(reason));
}

void SchedulerCore::end_late(Taken taken) {
  while (const std::shared_ptr<Request> request = taken.pop()) end_unrun(*request, StopReason::kStopLate);
}

void SchedulerCore::end_if_waiting(Request& request, StopReason reason) {
  std::shared_ptr<Request> self;
  {
    const std::lock_guard lock(mutex);
    if (!request.in_line_) return;
    unlink(request);
    self = std::move(request.self_);
  }
  end_unrun(request, reason);
}

Status SchedulerCore::start_clock() {
  if (clock.joinable()) return {};
  try {
    const backend::BlockedSignals blocked;
    clock = std::thread([this] { watch_clock(); });
    return {};
  } catch (const std::system_error& error) {
    return {ErrorClass::kDevice, std::string("the scheduler cannot start the thread for deadlines: ") + error.what()};
  }
}

// No request in the line, and no running one that was not told, has an earlier deadline.
SchedulerCore::Clock::time_point SchedulerCore::next_deadline() const {
  Clock::time_point next = earliest_deadline;
  for (const Lane& lane : lanes) {
    if (lane.running != nullptr) next = std::min(next, lane.running->deadline_);
  }
  return next;
}

void SchedulerCore::watch_clock() {
  pthread_setname_np(pthread_self(), "hetero-clock");
  part_of = this;
  std::unique_lock lock(mutex);
  while (!clock_stops) {
    Taken late;
    take_late(Clock::now(), late);
    for (Lane& lane : lanes) {
      if (lane.running != nullptr && lane.running->should_stop()) lane.running = nullptr;
    }
    if (late.first != nullptr) {
      clock_ends = true;
      lock.unlock();
      end_late(late);
      lock.lock();
      clock_ends = false;
      lane_is_idle.notify_all();
      continue;
    }
    clock_until = next_deadline();
    if (clock_until == Request::kNever) {
      clock_wakeup.wait(lock);
    } else {
      clock_wakeup.wait_until(lock, clock_until);
    }
  }
}

void SchedulerCore::stop_clock() {
  {
    const std::lock_guard lock(mutex);
    clock_stops = true;
    clock_wakeup.notify_one();
  }
  if (clock.joinable()) clock.join();
}

void SchedulerCore::send_for(Lane& lane) {
  [[maybe_unused]] const Status status = lane.group->submit({[](void* context) {
                                                               Lane& sent_for = *static_cast<Lane*>(context);
                                                               sent_for.core->serve(sent_for);
                                                             },
                                                             &lane});
  // Groups refuse tasks in a forked child alone, where submit() was refused before.
  assert(status.ok());
}

void SchedulerCore::serve(Lane& lane) {
  part_of = this;
  if (const std::shared_ptr<Request> request = take_first(lane)) run(lane, *request);
  part_of = nullptr;
  leave(lane);
}

// Null if the request for which the lane was sent has ended meanwhile.
std::shared_ptr<Request> SchedulerCore::take_first(Lane& lane) {
  const std::lock_guard lock(mutex);
  --coming_lanes;
  if (first == nullptr) return nullptr;
  Request& request = *first;
  unlink(request);
  request.state_.store(RequestState::kRunning, std::memory_order_release);
  if (request.deadline_ != Request::kNever) lane.running = &request;
  return std::move(request.self_);
}

void SchedulerCore::run(Lane& lane, Request& request) {
  const bool runs = !request.should_stop();
  Status status = runs ? call(handler, lane.number, request) : Status();
  if (request.deadline_ != Request::kNever) {
    const std::lock_guard lock(mutex);
    lane.running = nullptr;
  }
  const bool stopped = request.should_stop();
  const auto reason = static_cast<StopReason>(request.stop_.load(std::memory_order_relaxed));
  if (!runs) return end_unrun(request, reason);
  RequestState state = RequestState::kDone;
  std::atomic<int64_t>* count = status.ok() ? &completed : &failed;
  // A cancelled request that completed is complete; one that completed too late is late.
  const bool gave_up = !status.ok() && status.error_class() == ErrorClass::kCancelled;
  if (stopped && (gave_up || (status.ok() && reason == StopReason::kStopLate))) {
    state = state_of(reason);
    count = reason == StopReason::kStopLate ? &late : &cancelled;
    status = stopped_error(reason);
  }
  count->fetch_add(1, std::memory_order_relaxed);
  request.end(state, std::move(status));
}

void SchedulerCore::leave(Lane& lane) {
  {
    const std::lock_guard lock(mutex);
    if (first == nullptr) {
      idle_lanes.push_back(&lane);
      lane_is_idle.notify_all();
      return;  // and touches nothing: the scheduler may be gone
    }
    ++coming_lanes;
    admit_more();
  }
  send_for(lane);
}

Request::Request() : fork_generation_(backend::fork_generation()) {}
Request::~Request() = default;

Status Request::wait() {
  if (backend::fork_generation() != fork_generation_) return forked_error();
  wait_until(kNever, false);
  return status_;
}

bool Request::wait_until(Clock::time_point limit) {
  if (backend::fork_generation() != fork_generation_) return has_ended();
  return wait_until(limit, false);
}

bool Request::wait_until(Clock::time_point limit, bool or_admitted) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return has_ended() || (or_admitted && admitted_.load(std::memory_order_acquire)); };
  if (limit != kNever) return changed_.wait_until(lock, limit, is_over);
  changed_.wait(lock, is_over);
  return true;
}

void Request::cancel() {
  if (backend::fork_generation() != fork_generation_) return;
  std::shared_ptr<SchedulerCore> core;
  int32_t reason = kGoOn;
  {
    const std::lock_guard lock(mutex_);
    if (has_ended()) return;
    if (stop_.compare_exchange_strong(reason, kStopCancelled, std::memory_order_relaxed)) reason = kStopCancelled;
    core = core_;
  }
  if (core != nullptr) core->end_if_waiting(*this, static_cast<StopReason>(reason));
}

bool Request::should_stop() {
  if (stop_.load(std::memory_order_relaxed) != kGoOn) return true;
  if (deadline_ == kNever || Clock::now() < deadline_) return false;
  int32_t expected = kGoOn;
  stop_.compare_exchange_strong(expected, kStopLate, std::memory_order_relaxed);
  return true;
}

Status Request::begin(const std::shared_ptr<SchedulerCore>& core, Clock::time_point deadline) {
  const std::lock_guard lock(mutex_);
  const RequestState before = state();
  if (before == RequestState::kWaiting || before == RequestState::kRunning) {
    return {ErrorClass::kUsage, "the request was submitted before and has not ended; wait for it, or submit another"};
  }
  if (before != RequestState::kNew) stop_.store(kGoOn, std::memory_order_relaxed);
  admitted_.store(false, std::memory_order_relaxed);
  status_ = {};
  deadline_ = deadline;
  core_ = core;
  state_.store(RequestState::kWaiting, std::memory_order_release);
  return {};
}

void Request::end(RequestState state, Status status) {
  const bool accepted = admitted_.load(std::memory_order_relaxed);
  std::shared_ptr<SchedulerCore> core;
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    core.swap(core_);
    state_.store(state, std::memory_order_release);
    changed_.notify_all();
  }
  if (accepted) on_end();
}

Result<std::unique_ptr<Scheduler>> Scheduler::create(std::vector<backend::CoreGroup*> lanes, Options options,
                                                     Handler handler) {
  const auto error = [](const char* message) { return Status(ErrorClass::kUsage, message); };
  if (lanes.empty()) return error("a scheduler needs a lane: give it one core group or more");
  for (auto lane = lanes.begin(); lane != lanes.end(); ++lane) {
    if (*lane == nullptr) return error("a lane of a scheduler is null; give it core groups that exist");
    if (std::find(lanes.begin(), lane, *lane) != lane) {
      return error("two lanes of a scheduler are the same core group; give it each group once");
    }
  }
  if (options.capacity == 0) return error("a scheduler needs a capacity of 1 or more requests that wait");
  if (!handler) return error("a scheduler needs a handler that runs requests");
  return std::unique_ptr<Scheduler>(new Scheduler(std::make_shared<SchedulerCore>(lanes, options, std::move(handler))));
}

Scheduler::Scheduler(std::shared_ptr<SchedulerCore> core) : core_(std::move(core)) {}

Scheduler::~Scheduler() {
  if (core_->is_forked()) {
    // The mutex may be locked for ever. Leaked in the child alone.
    new std::shared_ptr<SchedulerCore>(std::move(core_));
    return;
  }
  bool was_closed;
  {
    const std::lock_guard lock(core_->mutex);
    was_closed = core_->closed;
  }
  if (!was_closed) close(WhenClosed::kCancel);
  wait_idle();
  core_->stop_clock();
}

Status Scheduler::submit(std::shared_ptr<Request> request, RequestOptions options) {
  if (core_->is_forked()) return forked_error();
  if (request == nullptr) return {ErrorClass::kUsage, "the request to submit is null"};
  if (Status status = request->begin(core_, options.deadline); !status.ok()) return status;
  SchedulerCore::Entry entry = core_->enter(request);
  if (entry.lane != nullptr) core_->send_for(*entry.lane);
  core_->end_late(entry.late);
  if (entry.state != RequestState::kWaiting) {
    core_->end_unrun(*request, entry.state, entry.refusal);
    return entry.refusal;
  }
  if (entry.admitted) return {};
  request->wait_until(Request::kNever, true);
  return request->admitted_.load(std::memory_order_acquire) ? Status() : request->status_;
}

void Scheduler::close(WhenClosed waiting) {
  if (core_->is_forked()) return;
  SchedulerCore::Taken taken;
  {
    const std::lock_guard lock(core_->mutex);
    core_->closed = true;
    // From behind, so that no request that waits for room is admitted.
    while (waiting == WhenClosed::kCancel && core_->last != nullptr) core_->take(*core_->last, taken);
  }
  while (const std::shared_ptr<Request> request = taken.pop()) {
    core_->end_unrun(*request, RequestState::kCancelled, closed_error());
  }
}

void Scheduler::wait_idle() {
  if (core_->is_forked()) return;
  std::unique_lock lock(core_->mutex);
  core_->lane_is_idle.wait(lock, [&] { return core_->idle_lanes.size() == core_->lanes.size() && !core_->clock_ends; });
}

SchedulerCounters Scheduler::counters() const {
  const auto read = [](const std::atomic<int64_t>& count) { return count.load(std::memory_order_relaxed); };
  SchedulerCounters counters{.submitted = read(core_->submitted),
                             .completed = read(core_->completed),
                             .failed = read(core_->failed),
                             .cancelled = read(core_->cancelled),
                             .late = read(core_->late),
                             .refused = read(core_->refused)};
  if (core_->is_forked()) return counters;
  const std::lock_guard lock(core_->mutex);
  counters.waiting = static_cast<int64_t>(core_->admitted);
  counters.most_waiting = static_cast<int64_t>(core_->most_waiting);
  return counters;
}

}  // namespace hetero::graph
