// Scheduler: many threads at once, and forks.

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/backend/child.h"
#include "tests/graph/serve/scheduler_fixture.h"

namespace hetero::graph::testing {

namespace {

// Sums of a few thousand numbers, with stops between them: long enough to be cancelled now and then
// while it runs.
struct Sum : Request {
  Sum(int id, int steps) : number(id), length(steps) { ++alive; }
  ~Sum() override { --alive; }
  void on_end() noexcept override { ++ends; }
  int64_t expected() const { return number * int64_t{length} * (length + 1) / 2; }

  const int number;
  const int length;
  int64_t result = -1;
  std::atomic<int> ends{0};
  static inline std::atomic<int> alive{0};
};

Status run_sum(Sum& sum) {
  if (sum.number % 17 == 3) throw std::runtime_error("sum " + std::to_string(sum.number));
  int64_t result = 0;
  for (int i = 1; i <= sum.length; ++i) {
    if (i % 64 == 0 && sum.should_stop()) return stopped();
    result += int64_t{sum.number} * i;
  }
  sum.result = result;
  return {};
}

struct Tally {
  int64_t done = 0, failed = 0, cancelled = 0, late = 0, refused = 0, wrong = 0;
};

// Submits, cancels some at some time, waits for all, and looks at each result.
void submit_sums(Scheduler& scheduler, int thread, int count, Tally& tally) {
  std::mt19937 random(static_cast<unsigned>(thread));
  std::vector<std::shared_ptr<Sum>> pending;
  const auto settle = [&](const std::shared_ptr<Sum>& sum) {
    const Status status = sum->wait();
    switch (sum->state()) {
      case RequestState::kDone:
        if (status.ok()) {
          ++tally.done;
          tally.wrong += sum->result != sum->expected();
        } else {
          ++tally.failed;
          tally.wrong += status.message() != "sum " + std::to_string(sum->number);
        }
        break;
      case RequestState::kCancelled:
        ++tally.cancelled;
        tally.wrong += status.error_class() != ErrorClass::kCancelled;
        break;
      case RequestState::kLate:
        ++tally.late;
        tally.wrong += status.message().find("deadline") == std::string::npos;
        break;
      default:
        ++tally.wrong;
    }
  };
  for (int i = 0; i < count; ++i) {
    const auto sum = std::make_shared<Sum>(thread * count + i, 1 + static_cast<int>(random() % 4096));
    RequestOptions options;
    if (random() % 8 == 0) options.deadline = Clock::now() + std::chrono::microseconds(random() % 2000);
    const Status accepted = scheduler.submit(sum, options);
    if (!accepted.ok()) {
      ++tally.refused;
      tally.wrong += sum->state() != RequestState::kLate && sum->state() != RequestState::kRefused;
      continue;
    }
    pending.push_back(sum);
    if (random() % 4 == 0) pending[random() % pending.size()]->cancel();
    if (pending.size() > 8) {
      settle(pending.front());
      pending.erase(pending.begin());
    }
  }
  for (const auto& sum : pending) settle(sum);
}

void run_many_threads(Scheduler::Options options) {
  constexpr int kThreads = 8;
  constexpr int kRequests = 1000;
  const Lanes lanes(3);
  std::array<Tally, kThreads> tallies;
  SchedulerCounters counters;
  {
    const auto scheduler =
        make_scheduler(lanes, options, [](size_t, Request& request) { return run_sum(static_cast<Sum&>(request)); });
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] { submit_sums(*scheduler, t, kRequests, tallies[static_cast<size_t>(t)]); });
    }
    for (auto& thread : threads) thread.join();
    scheduler->wait_idle();
    counters = scheduler->counters();
  }
  Tally all;
  for (const Tally& tally : tallies) {
    all.done += tally.done;
    all.failed += tally.failed;
    all.cancelled += tally.cancelled;
    all.late += tally.late;
    all.refused += tally.refused;
    all.wrong += tally.wrong;
  }
  CHECK(all.wrong == 0);
  CHECK(all.done + all.failed + all.cancelled + all.late + all.refused == kThreads * kRequests);
  CHECK(counters.completed == all.done);
  CHECK(counters.failed == all.failed);
  CHECK(counters.cancelled == all.cancelled);
  CHECK(counters.late == all.late);
  CHECK(counters.refused == all.refused);
  CHECK(counters.submitted + counters.refused == kThreads * kRequests);
  CHECK(counters.ended() == counters.submitted);
  CHECK(counters.waiting == 0);
  CHECK(counters.most_waiting <= static_cast<int64_t>(options.capacity));
  CHECK(counters.completed > 0);
  CHECK(counters.cancelled > 0);
  CHECK(Sum::alive == 0);
}

}  // namespace

TEST_CASE("8 threads submit and cancel 1,000 requests each, waiting for room, and nothing is wrong or left") {
  run_many_threads({.capacity = 4});
}

TEST_CASE("8 threads submit and cancel 1,000 requests each, refused at times, and nothing is wrong or left") {
  run_many_threads({.capacity = 16, .when_full = WhenFull::kRefuse});
}

TEST_CASE("a scheduler may be closed while threads submit") {
  for (int round = 0; round < 20; ++round) {
    const Lanes lanes(2);
    const auto scheduler = make_scheduler(lanes, {.capacity = 2});
    std::atomic<int> ended = 0;
    std::atomic<int> accepted = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        while (true) {
          const auto job = make_job();
          const bool ok = scheduler->submit(job).ok();
          if (!ok) return;
          ++accepted;
          job->wait_until(Request::kNever);
          ++ended;
        }
      });
    }
    wait_until([&] { return ended > 20; });
    scheduler->close(round % 2 == 0 ? WhenClosed::kCancel : WhenClosed::kRun);
    for (auto& thread : threads) thread.join();
    scheduler->wait_idle();
    CHECK(accepted == ended);
    CHECK(scheduler->counters().submitted == accepted);
    check_all_ended(*scheduler);
  }
}

TEST_CASE("a forked child can leave a scheduler alone, and is told that it cannot use it") {
  const Lanes lanes(1);
  auto scheduler = make_scheduler(lanes);
  Gate gate(*scheduler);
  const auto waiting = make_job();
  REQUIRE(scheduler->submit(waiting).ok());
  const auto outcome = backend::testing::run_in_child([&] {
    if (scheduler->submit(make_job()).ok()) return 1;
    if (waiting->wait().ok()) return 2;
    waiting->cancel();
    scheduler->close(WhenClosed::kCancel);
    scheduler->wait_idle();
    scheduler.reset();
    return 0;
  });
  CHECK(outcome.exit_code == 0);
  gate.open();
  CHECK(waiting->wait().ok());
}

}  // namespace hetero::graph::testing
