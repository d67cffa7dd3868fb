#include "ops/run/overlap.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "backend/registry/registry.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/plan_cache.h"
#include "ops/record/running.h"
#include "ops/run/run_errors.h"
#include "ops/settings/config.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {
namespace {

using std::chrono::nanoseconds;

// What a piece takes to record or to run, whichever is less.
constexpr nanoseconds kPiece{400'000};
constexpr int64_t kMostPieces = 32;
constexpr int64_t kLeastNodes = 16;  // in a piece
constexpr int64_t kLeastForced = 4;  // the same, for tests
constexpr int32_t kMostFlights = 2 * kMostPieces;
// When its value is wanted, a kernel in flight has to end first, on fewer threads. Where running
// takes many times as long as recording, that may be longer than all of the recording.
constexpr int kMostRuns = 8;
// Traces like this one must have been seen before it is divided.
constexpr int kVotes = 8;
// Divided, it must be faster than this much of its time before, in the best of some trials; the
// first ones make plans.
constexpr double kWorthDividing = 0.95;
constexpr int kFirstTrial = 4;
constexpr int kLastTrial = 11;
// Machines with more threads were not measured: there, a kernel on a few threads may hold up the
// many.
constexpr int kMostThreads = 4;

// `threads`: of the process.
bool is_worthwhile(int threads) { return threads > 1 && threads <= kMostThreads; }

bool is_possible() {
  const Config& options = config();
  const auto is_set = [](const std::atomic<bool>& option) { return option.load(std::memory_order_relaxed); };
  return last_bits_may_vary() && is_set(options.overlap) && !is_set(options.sync) && !is_set(options.traceback) &&
         !is_set(options.keep_plans) && options.log.load(std::memory_order_relaxed) == 0 &&
         backend::accelerator() == nullptr && !spills() && !at::hasCallbacks();
}

}  // namespace

Overlap& overlap() {
  static auto* instance = new Overlap;
  return *instance;
}

Executing::Executing() : lock_(executor_mutex()) {
  if (running_slices().empty()) overlap().run_waiting();
}

void Overlap::want() {
  Locked lock(recorder().mutex());
  wanted_.fetch_add(1, std::memory_order_relaxed);
}

void Overlap::want_no_more() { wanted_.fetch_sub(1, std::memory_order_release); }

void Overlap::cut_early() {
  if (!is_possible()) return;
  std::unique_ptr<Flight> flight;
  {
    const std::lock_guard guard(mutex_);
    if (stopped_) return;
    if (!unused_.empty()) {
      flight = std::move(unused_.back());
      unused_.pop_back();
    }
  }
  if (flight == nullptr) flight = std::make_unique<Flight>();
  flight->cut.slice.threads = at::get_num_threads();
  {
    Locked lock(recorder().mutex());
    const bool cut = wanted_.load(std::memory_order_relaxed) == 0 && recorder().cut_early(flight->cut, flight->number);
    const std::lock_guard guard(mutex_);
    if (!cut) {
      unused_.push_back(std::move(flight));
      return;
    }
    flight->started = false;
    flights_.push_back(std::move(flight));
    flight_count_.fetch_add(1, std::memory_order_release);
  }
  start_thread();
  waiting_.notify_one();
  // A program that reads nothing would otherwise run away from its flights.
  if (flight_count_.load(std::memory_order_relaxed) >= kMostFlights) const Executing executing;
}

void Overlap::learn(const Cut& cut, nanoseconds recording, nanoseconds running) {
  PlanSet& plans = cut.request.end->plans();
  const nanoseconds shorter = std::min(recording, running);
  const auto nodes = static_cast<int64_t>(cut.times.recorded_nodes);
  const int64_t pieces = std::min({shorter / kPiece, kMostPieces, nodes / kLeastNodes});
  if (const int forced = forced_pieces_.load(std::memory_order_relaxed); forced > 0) {
    plans.pieces = nodes >= kLeastForced * forced ? forced : 0;
    return;
  }
  // The first run is not that of a plan.
  if (plans.sightings < 2 || pieces < 2 || running > kMostRuns * recording || !is_worthwhile(cut.slice.threads) ||
      !is_possible()) {
    plans.overlap_votes = 0;
    return;
  }
  plans.whole = std::min(plans.whole, recording + running);
  if (++plans.overlap_votes < kVotes) return;
  plans.overlap_votes = 0;
  plans.pieces = static_cast<int>(pieces);
}

void Overlap::judge(TrieNode* mark, nanoseconds all) {
  if (forced_pieces_.load(std::memory_order_relaxed) > 0) return;
  PlanSet& plans = mark->plans();
  if (plans.trials > kLastTrial || ++plans.trials < kFirstTrial) return;
  plans.divided = std::min(plans.divided, all);
  if (plans.trials <= kLastTrial) return;
  if (static_cast<double>(plans.divided.count()) < kWorthDividing * static_cast<double>(plans.whole.count())) return;
  Locked lock(recorder().mutex());
  mark->set_cuts(0);
}

void Overlap::start_thread() {
  const std::lock_guard guard(mutex_);
  if (thread_.joinable() || stopped_) return;
  thread_ = std::thread([this] { work(); });
  std::atexit([] { overlap().stop(); });
}

void Overlap::stop() {
  want();
  {
    const std::lock_guard guard(mutex_);
    stopped_ = true;
  }
  waiting_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Overlap::abandon() {
  new (&mutex_) std::mutex;
  new (&waiting_) std::condition_variable;
  new (&flights_) std::deque<std::unique_ptr<Flight>>;
  new (&thread_) std::thread;
  flight_count_ = 0;
  wanted_ = 0;
}

void Overlap::work() {
  pthread_setname_np(pthread_self(), "hetero-overlap");
  std::unique_lock lock(mutex_);
  while (true) {
    waiting_.wait(lock, [&] { return stopped_ || !flights_.empty(); });
    if (stopped_) return;
    lock.unlock();
    bool ran = false;
    {
      // Who has the lock runs the flights.
      const std::unique_lock executing(executor_mutex(), std::try_to_lock);
      ran = executing.owns_lock() && run_front(&wanted_);
    }
    lock.lock();
    if (!ran) waiting_.wait_for(lock, std::chrono::milliseconds(1));
  }
}

void Overlap::run_waiting() {
  if (flight_count_.load(std::memory_order_acquire) == 0) return;
  const WithoutInterpreter released;
  const KernelScope scope;
  choose_thread_count();
  while (run_front(nullptr)) {
  }
}

// Runs the first flight, to its end or until somebody wants to take over. False where it has not
// ended, or there is none.
bool Overlap::run_front(const std::atomic<int32_t>* stop) {
  Flight* flight;
  {
    const std::lock_guard guard(mutex_);
    if (flights_.empty()) return false;
    flight = flights_.front().get();
  }
  Cut& cut = flight->cut;
  const bool background = stop != nullptr;
  // The overlap thread must not change the default dtype, which others would see.
  if (background && !flight->started &&
      c10::typeMetaToScalarType(c10::get_default_dtype()) != cut.slice.default_dtype) {
    return false;
  }
  Status status;
  {
    const DefaultDtype dtype(cut.slice.default_dtype);
    const RunScope running(cut.slice);
    if (!flight->started) {
      // Plans are made for all threads, whoever runs them.
      if (background) use_threads_here(cut.slice.threads);
      status = run_.start(cut, SyncReason::kOverlap);
      flight->started = status.ok();
    }
    if (flight->started) {
      if (background) use_threads_here(std::max(1, cut.slice.threads - 1));
      if (!run_.go_on(stop)) return false;
      status = run_.finish();
    }
  }
  std::unique_ptr<Flight> landed;
  {
    const std::lock_guard guard(mutex_);
    landed = std::move(flights_.front());
    flights_.pop_front();
    flight_count_.fetch_sub(1, std::memory_order_release);
  }
  complete(std::move(landed), status);
  return true;
}

void Overlap::complete(std::unique_ptr<Flight> flight, const Status& status) {
  // Its error is for whoever needs the value.
  if (!status.ok() && run_errors().deferred.ok()) run_errors().deferred = status;
  std::vector<StorageHold> last_owners;
  {
    Locked lock(recorder().mutex());
    recorder().land(flight->cut, flight->number, last_owners);
  }
  last_owners.clear();
  flight->cut.clear();
  const std::lock_guard guard(mutex_);
  unused_.push_back(std::move(flight));
}

}  // namespace hetero::ops
