#include "graph/serve/scheduler.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <latch>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/graph/serve/scheduler_fixture.h"

namespace hetero::graph::testing {
TEST_CASE("requests run in the order in which they came") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  Gate gate(*scheduler);
  std::vector<int> order;
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(make_job([&order, i](Job&) {
      order.push_back(i);
      return Status();
    }));
    REQUIRE(scheduler->submit(jobs.back()).ok());
    CHECK(jobs.back()->state() == RequestState::kWaiting);
  }
  CHECK(scheduler->counters().waiting == 20);
  gate.open();
  for (const auto& job : jobs) CHECK(job->wait().ok());
  scheduler->wait_idle();
  for (int i = 0; i < 20; ++i) CHECK(order[static_cast<size_t>(i)] == i);
  CHECK(jobs.back()->state() == RequestState::kDone);
  CHECK(jobs.back()->ends == 1);
  CHECK(scheduler->counters().completed == 21);
  CHECK(scheduler->counters().most_waiting == 20);
  check_all_ended(*scheduler);
}

TEST_CASE("as many requests run at once as there are lanes, each on a lane of its own") {
  constexpr size_t kLanes = 3;
  const Lanes lanes(kLanes);
  const auto scheduler = make_scheduler(lanes);
  // Goes on when all lanes are there.
  Rendezvous meeting(kLanes);
  std::vector<std::shared_ptr<Job>> jobs;
  for (size_t i = 0; i < 20 * kLanes; ++i) {
    jobs.push_back(make_job([&](Job&) {
      meeting.arrive();
      return Status();
    }));
    REQUIRE(scheduler->submit(jobs.back()).ok());
  }
  std::array<int, kLanes> by_lane{};
  for (const auto& job : jobs) {
    REQUIRE(job->wait().ok());
    ++by_lane[job->lane];
  }
  CHECK(by_lane == std::array<int, kLanes>{20, 20, 20});
}

TEST_CASE("other tasks of a group have their turn between requests") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  Gate gate(*scheduler);
  std::vector<int> order;
  const auto note = [&](int number) {
    return make_job([&order, number](Job&) {
      order.push_back(number);
      return Status();
    });
  };
  REQUIRE(scheduler->submit(note(1)).ok());
  REQUIRE(scheduler->submit(note(2)).ok());
  REQUIRE(lanes.groups[0]
              ->submit({[](void* context) { static_cast<std::vector<int>*>(context)->push_back(0); }, &order})
              .ok());
  gate.open();
  scheduler->wait_idle();
  CHECK(order == std::vector<int>{0, 1, 2});
}

TEST_CASE("a full scheduler refuses requests with a sentence, and accepts them again when there is room") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes, {.capacity = 2, .when_full = WhenFull::kRefuse});
  Gate gate(*scheduler);
  REQUIRE(scheduler->submit(make_job()).ok());
  REQUIRE(scheduler->submit(make_job()).ok());
  const auto job = make_job();
  const Status status = scheduler->submit(job);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kResource);
  CHECK(status.message() ==
        "the scheduler has no room: 2 requests wait already; submit again when one has ended, or raise the capacity");
  CHECK(job->state() == RequestState::kRefused);
  CHECK(job->wait().message() == status.message());
  CHECK(job->ends == 0);
  CHECK(scheduler->counters().refused == 1);
  gate.open();
  scheduler->wait_idle();
  REQUIRE(scheduler->submit(job).ok());
  CHECK(job->wait().ok());
  CHECK(scheduler->counters().completed == 4);
}

TEST_CASE("requests for lanes that are free take no room") {
  const Lanes lanes(3);
  const auto scheduler = make_scheduler(lanes, {.capacity = 1, .when_full = WhenFull::kRefuse});
  std::latch opened(1);
  const auto body = [&](Job&) {
    opened.wait();
    return Status();
  };
  int accepted = 0;
  for (int i = 0; i < 6; ++i) accepted += scheduler->submit(make_job(body)).ok();
  CHECK(accepted == 4);
  opened.count_down();
  scheduler->wait_idle();
  CHECK(scheduler->counters().most_waiting <= 1);
}

TEST_CASE("submit waits for room, in line") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes, {.capacity = 1});
  Gate gate(*scheduler);
  std::vector<int> order;
  const auto note = [&](int number) {
    return make_job([&order, number](Job&) {
      order.push_back(number);
      return Status();
    });
  };
  const auto first = note(0);
  REQUIRE(scheduler->submit(first).ok());
  const auto second = note(1);
  std::atomic<bool> accepted = false;
  std::thread submitter([&] { accepted = scheduler->submit(second).ok(); });
  wait_until([&] { return second->state() == RequestState::kWaiting; });
  CHECK(scheduler->counters().waiting == 1);
  CHECK_FALSE(accepted);
  // Room that a cancelled request leaves is enough.
  first->cancel();
  submitter.join();
  CHECK(accepted);
  CHECK(second->state() == RequestState::kWaiting);
  CHECK(scheduler->counters().most_waiting == 1);
  gate.open();
  CHECK(second->wait().ok());
  CHECK(order == std::vector<int>{1});
  scheduler->wait_idle();
  check_all_ended(*scheduler);
}

TEST_CASE("many submitters that wait for room all get it") {
  const Lanes lanes(2);
  const auto scheduler = make_scheduler(lanes, {.capacity = 1});
  std::atomic<int> runs = 0;
  std::atomic<int> errors = 0;
  std::vector<std::thread> submitters;
  for (int t = 0; t < 6; ++t) {
    submitters.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        errors += !scheduler
                       ->submit(make_job([&](Job&) {
                         ++runs;
                         return Status();
                       }))
                       .ok();
      }
    });
  }
  for (auto& submitter : submitters) submitter.join();
  scheduler->wait_idle();
  CHECK(errors == 0);
  CHECK(runs == 600);
  CHECK(scheduler->counters().most_waiting <= 1);
}

TEST_CASE("waiting for room ends with the deadline, and with cancel()") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes, {.capacity = 1});
  Gate gate(*scheduler);
  REQUIRE(scheduler->submit(make_job()).ok());
  const auto late = make_job();
  const Status status = scheduler->submit(late, {.deadline = Clock::now() + std::chrono::milliseconds(5)});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kCancelled);
  CHECK(status.message() == "the request's deadline passed before it ran");
  CHECK(late->state() == RequestState::kLate);
  const auto unwanted = make_job();
  std::thread canceller([&] {
    wait_until([&] { return unwanted->state() == RequestState::kWaiting; });
    unwanted->cancel();
  });
  const Status cancelled = scheduler->submit(unwanted);
  canceller.join();
  REQUIRE_FALSE(cancelled.ok());
  CHECK(cancelled.message() == "the request was cancelled before it ran");
  CHECK(unwanted->state() == RequestState::kCancelled);
  CHECK(scheduler->counters().refused == 2);
  CHECK(late->ends + unwanted->ends == 0);
  gate.open();
  scheduler->wait_idle();
  CHECK(scheduler->counters().completed == 2);
}

TEST_CASE("what runs on a lane is refused where others would wait for room") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes, {.capacity = 1});
  std::vector<Status> statuses;
  const auto outer = make_job([&](Job&) {
    for (int i = 0; i < 2; ++i) statuses.push_back(scheduler->submit(make_job()));
    return Status();
  });
  REQUIRE(scheduler->submit(outer).ok());
  scheduler->wait_idle();
  REQUIRE(statuses.size() == 2);
  CHECK(statuses[0].ok());
  REQUIRE_FALSE(statuses[1].ok());
  CHECK(statuses[1].error_class() == ErrorClass::kResource);
}

TEST_CASE("a request that waits ends at once when it is cancelled, and never runs") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  Gate gate(*scheduler);
  const auto before = make_job();
  const auto job = make_job();
  const auto behind = make_job();
  for (const auto& one : {before, job, behind}) REQUIRE(scheduler->submit(one).ok());
  job->cancel();
  CHECK(job->state() == RequestState::kCancelled);
  CHECK(job->ends == 1);
  const Status status = job->wait();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kCancelled);
  CHECK(status.message() == "the request was cancelled before it ran");
  CHECK(scheduler->counters().waiting == 2);
  gate.open();
  CHECK(before->wait().ok());
  CHECK(behind->wait().ok());
  CHECK(job->lane == SIZE_MAX);
  scheduler->wait_idle();
  CHECK(scheduler->counters().cancelled == 1);
  CHECK(scheduler->counters().completed == 3);
}

TEST_CASE("a request that runs sees that it is cancelled") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  std::latch running(1);
  const auto job = make_job([&](Job& self) {
    running.count_down();
    wait_until([&] { return self.stop() != 0; });
    return stopped();
  });
  REQUIRE(scheduler->submit(job).ok());
  running.wait();
  CHECK(job->state() == RequestState::kRunning);
  job->cancel();
  const Status status = job->wait();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kCancelled);
  CHECK(status.message() == "the request was cancelled while it ran");
  CHECK(job->state() == RequestState::kCancelled);
  CHECK(scheduler->counters().cancelled == 1);
}

TEST_CASE("a handler that does not look at cancel() gives its result") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  Gate gate(*scheduler);
  gate.job->cancel();
  CHECK(gate.job->state() == RequestState::kRunning);
  gate.open();
  CHECK(gate.job->wait().ok());
  CHECK(gate.job->state() == RequestState::kDone);
  gate.job->cancel();
  CHECK(gate.job->state() == RequestState::kDone);
  CHECK(scheduler->counters().completed == 1);
}

TEST_CASE("a request that is cancelled before it is submitted is not accepted") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  const auto job = make_job();
  job->cancel();
  CHECK(job->state() == RequestState::kNew);
  const Status status = scheduler->submit(job);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kCancelled);
  CHECK(job->state() == RequestState::kCancelled);
  CHECK(scheduler->counters().submitted == 0);
}

TEST_CASE("a deadline that has passed is refused") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  const auto job = make_job();
  const Status status = scheduler->submit(job, {.deadline = Clock::now()});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kCancelled);
  CHECK(job->state() == RequestState::kLate);
  CHECK(job->lane == SIZE_MAX);
}

// A deadline that is to pass while a request waits may, on a machine that is very busy, pass before
// it is submitted. Then the attempt is no use and says so, and another gives it more time.
template <typename Attempt>
void with_patience(Attempt attempt) {
  for (std::chrono::milliseconds patience(5); !attempt(patience); patience *= 2) {
  }
}

TEST_CASE("a request whose deadline passes while it waits is not run") {
  const Lanes lanes(1);
  with_patience([&](std::chrono::milliseconds patience) {
    const auto scheduler = make_scheduler(lanes);
    Gate gate(*scheduler);
    const RequestOptions options{.deadline = Clock::now() + patience};
    const auto watched = make_job();
    const auto unwatched = make_job();
    if (!scheduler->submit(watched, options).ok() || !scheduler->submit(unwatched, options).ok()) return false;
    // Both end while the lane is still busy, whether somebody waits or not.
    wait_until([&] { return unwatched->ends == 1; });
    const Status status = watched->wait();
    REQUIRE_FALSE(status.ok());
    CHECK(status.error_class() == ErrorClass::kCancelled);
    CHECK(status.message() == "the request's deadline passed before it ran");
    CHECK(watched->state() == RequestState::kLate);
    CHECK(unwatched->state() == RequestState::kLate);
    CHECK(gate.job->state() == RequestState::kRunning);
    gate.open();
    scheduler->wait_idle();
    CHECK(watched->ends == 1);
    CHECK(unwatched->lane == SIZE_MAX);
    CHECK(scheduler->counters().late == 2);
    check_all_ended(*scheduler);
    return true;
  });
}

TEST_CASE("late requests make room") {
  const Lanes lanes(1);
  with_patience([&](std::chrono::milliseconds patience) {
    const auto scheduler = make_scheduler(lanes, {.capacity = 2, .when_full = WhenFull::kRefuse});
    Gate gate(*scheduler);
    const auto deadline = Clock::now() + patience;
    const auto late = make_job();
    const auto kept = make_job();
    if (!scheduler->submit(late, {.deadline = deadline}).ok()) return false;
    REQUIRE(scheduler->submit(kept).ok());
    std::this_thread::sleep_until(deadline);
    const auto job = make_job();
    REQUIRE(scheduler->submit(job).ok());
    CHECK_FALSE(late->wait().ok());
    CHECK(late->state() == RequestState::kLate);
    CHECK_FALSE(scheduler->submit(make_job()).ok());
    gate.open();
    CHECK(job->wait().ok());
    CHECK(kept->wait().ok());
    return true;
  });
}

TEST_CASE("a request that runs is asked to stop at its deadline, though nobody waits for it") {
  const Lanes lanes(2);
  const auto scheduler = make_scheduler(lanes);
  const auto deadline = Clock::now() + std::chrono::milliseconds(50);
  const auto looks_at_clock = make_job(run_until_stopped);
  const auto looks_at_flag = make_job([](Job& self) {
    wait_until([&] { return self.stop() != 0; });
    return stopped();
  });
  for (const auto& job : {looks_at_clock, looks_at_flag}) {
    // On a machine that is very busy they may be late before they run.
    if (!scheduler->submit(job, {.deadline = deadline}).ok()) CHECK(job->state() == RequestState::kLate);
  }
  for (const auto& job : {looks_at_flag, looks_at_clock}) {
    wait_until([&] { return job->has_ended(); });
    REQUIRE_FALSE(job->status().ok());
    CHECK(job->status().error_class() == ErrorClass::kCancelled);
    CHECK(job->status().message().find("the request's deadline passed ") == 0);
    CHECK(job->state() == RequestState::kLate);
  }
}

TEST_CASE("a deadline that is earlier than all others is noticed first") {
  const Lanes lanes(2);
  const auto scheduler = make_scheduler(lanes);
  const auto looks_at_flag = [](Job& self) {
    wait_until([&] { return self.stop() != 0; });
    return stopped();
  };
  const auto much_later = make_job(looks_at_flag);
  REQUIRE(scheduler->submit(much_later, {.deadline = Clock::now() + std::chrono::hours(1)}).ok());
  with_patience([&](std::chrono::milliseconds patience) {
    const auto soon = make_job(looks_at_flag);
    if (!scheduler->submit(soon, {.deadline = Clock::now() + patience}).ok()) return false;
    wait_until([&] { return soon->has_ended(); });
    CHECK(soon->state() == RequestState::kLate);
    return true;
  });
  CHECK(much_later->state() == RequestState::kRunning);
  much_later->cancel();
  CHECK(much_later->wait().message() == "the request was cancelled while it ran");
}

TEST_CASE("a result that comes after the deadline is late, and an error is the request's own") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  // Looks at neither flag nor clock, and returns when the deadline has passed.
  const auto oversleep = [](Status status) {
    return make_job([status](Job& self) {
      wait_until([&] { return self.stop() != 0; });
      return status;
    });
  };
  with_patience([&](std::chrono::milliseconds patience) {
    const auto done = oversleep(Status());
    if (!scheduler->submit(done, {.deadline = Clock::now() + patience}).ok()) return false;
    const Status status = done->wait();
    if (done->lane == SIZE_MAX) return false;
    REQUIRE_FALSE(status.ok());
    CHECK(status.error_class() == ErrorClass::kCancelled);
    CHECK(status.message() == "the request's deadline passed while it ran");
    CHECK(done->state() == RequestState::kLate);
    return true;
  });
  with_patience([&](std::chrono::milliseconds patience) {
    const auto failed = oversleep(Status(ErrorClass::kDevice, "broken"));
    if (!scheduler->submit(failed, {.deadline = Clock::now() + patience}).ok()) return false;
    const Status status = failed->wait();
    if (failed->lane == SIZE_MAX) return false;
    CHECK(status.message() == "broken");
    CHECK(failed->state() == RequestState::kDone);
    return true;
  });
  const auto in_time = make_job();
  REQUIRE(scheduler->submit(in_time, {.deadline = Clock::now() + std::chrono::hours(1)}).ok());
  CHECK(in_time->wait().ok());
  CHECK(scheduler->counters().failed == 1);
  check_all_ended(*scheduler);
}

namespace {

// Threads of the process that watch deadlines.
int count_clocks() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(thread.path() / "comm") >> name;
    count += name == "hetero-clock";
  }
  return count;
}

}  // namespace

TEST_CASE("one thread watches the deadlines of all requests, and none where there are no deadlines") {
  const Lanes lanes(2);
  wait_until([] { return count_clocks() == 0; });
  auto scheduler = make_scheduler(lanes);
  std::vector<std::shared_ptr<Job>> jobs;
  const auto submit = [&](Clock::time_point deadline) {
    jobs.push_back(make_job());
    REQUIRE(scheduler->submit(jobs.back(), {.deadline = deadline}).ok());
  };
  for (int i = 0; i < 10; ++i) submit(Request::kNever);
  for (const auto& job : jobs) REQUIRE(job->wait().ok());
  CHECK(count_clocks() == 0);
  // It is given its name by itself.
  for (int i = 0; i < 50; ++i) submit(Clock::now() + std::chrono::hours(1 + i));
  wait_until([&] { return count_clocks() != 0; });
  CHECK(count_clocks() == 1);
  for (const auto& job : jobs) REQUIRE(job->wait().ok());
  scheduler.reset();
  wait_until([] { return count_clocks() == 0; });
}

TEST_CASE("waiting for a limited time leaves the request alone") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  Gate gate(*scheduler);
  const auto job = make_job();
  REQUIRE(scheduler->submit(job, {.deadline = Clock::now() + std::chrono::hours(1)}).ok());
  CHECK_FALSE(job->wait_for(std::chrono::milliseconds(1)));
  CHECK(job->state() == RequestState::kWaiting);
  gate.open();
  CHECK(job->wait_for(std::chrono::hours(1)));
  CHECK(job->status().ok());
}

TEST_CASE("an error and an exception stay with their request") {
  const Lanes lanes(2);
  const auto scheduler = make_scheduler(lanes);
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 40; ++i) {
    jobs.push_back(make_job([i](Job&) -> Status {
      if (i % 4 == 1) return {ErrorClass::kDevice, "error " + std::to_string(i)};
      if (i % 4 == 2) throw std::out_of_range("exception " + std::to_string(i));
      if (i % 4 == 3) throw i;
      return {};
    }));
    REQUIRE(scheduler->submit(jobs.back()).ok());
  }
  for (int i = 0; i < 40; ++i) {
    const auto& job = jobs[static_cast<size_t>(i)];
    const Status status = job->wait();
    CHECK(job->state() == RequestState::kDone);
    if (i % 4 == 0) {
      CHECK(status.ok());
      continue;
    }
    REQUIRE_FALSE(status.ok());
    if (i % 4 == 1) {
      CHECK(status.error_class() == ErrorClass::kDevice);
      CHECK(status.message() == "error " + std::to_string(i));
    } else {
      CHECK(status.error_class() == ErrorClass::kKernel);
      if (i % 4 == 2) {
        CHECK(status.message() == "exception " + std::to_string(i));
        CHECK_THROWS_AS(std::rethrow_exception(status.cause()), std::out_of_range);
      } else {
        CHECK(status.message() == "a handler threw an unknown exception");
        CHECK_THROWS_AS(std::rethrow_exception(status.cause()), int);
      }
    }
  }
  CHECK(scheduler->counters().failed == 30);
  CHECK(scheduler->counters().completed == 10);
}

TEST_CASE("an error of cancellation that nobody asked for is the request's own") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  const auto job = make_job([](Job&) { return stopped(); });
  REQUIRE(scheduler->submit(job).ok());
  CHECK(job->wait().message() == "stopped");
  CHECK(job->state() == RequestState::kDone);
  CHECK(scheduler->counters().failed == 1);
}

TEST_CASE("a request can be submitted again when it has ended, and not before") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes);
  const auto job = make_job(run_until_stopped);
  for (int round = 1; round <= 3; ++round) {
    REQUIRE(scheduler->submit(job).ok());
    const Status again = scheduler->submit(job);
    REQUIRE_FALSE(again.ok());
    CHECK(again.error_class() == ErrorClass::kUsage);
    CHECK_FALSE(job->has_ended());
    job->cancel();
    CHECK(job->wait().error_class() == ErrorClass::kCancelled);
    scheduler->wait_idle();
    CHECK(job->ends == round);
  }
}

TEST_CASE("a closed scheduler refuses requests and cancels those that wait") {
  const Lanes lanes(1);
  const auto scheduler = make_scheduler(lanes, {.capacity = 2});
  Gate gate(*scheduler);
  const auto first = make_job();
  const auto second = make_job();
  REQUIRE(scheduler->submit(first).ok());
  REQUIRE(scheduler->submit(second).ok());
  const auto outside = make_job();
  Status status;
  std::thread submitter([&] { status = scheduler->submit(outside); });
  wait_until([&] { return outside->state() == RequestState::kWaiting; });
  scheduler->close(WhenClosed::kCancel);
  submitter.join();
  for (const auto& job : {first, second}) {
    CHECK(job->state() == RequestState::kCancelled);
    CHECK(job->wait().message() == "the scheduler was closed before the request ran");
    CHECK(job->ends == 1);
  }
  REQUIRE_FALSE(status.ok());
  CHECK(status.error_class() == ErrorClass::kCancelled);
  CHECK(outside->ends == 0);
  const Status refused = scheduler->submit(make_job());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error_class() == ErrorClass::kCancelled);
  CHECK(gate.job->state() == RequestState::kRunning);
  gate.open();
  CHECK(gate.job->wait().ok());
  check_all_ended(*scheduler);
}

TEST_CASE("a closed scheduler may still run what waits") {
  const Lanes lanes(1);
  auto scheduler = make_scheduler(lanes, {.capacity = 2});
  Gate gate(*scheduler);
  std::vector<std::shared_ptr<Job>> jobs = {make_job(), make_job(), make_job()};
  REQUIRE(scheduler->submit(jobs[0]).ok());
  REQUIRE(scheduler->submit(jobs[1]).ok());
  // Whether it is in the line before the scheduler is closed is not to be seen, but it ends either
  // way.
  Status outside;
  std::thread submitter([&] { outside = scheduler->submit(jobs[2]); });
  wait_until([&] { return jobs[2]->state() == RequestState::kWaiting; });
  scheduler->close(WhenClosed::kRun);
  CHECK_FALSE(scheduler->submit(make_job()).ok());
  gate.open();
  submitter.join();
  scheduler.reset();
  CHECK(jobs[0]->state() == RequestState::kDone);
  CHECK(jobs[1]->state() == RequestState::kDone);
  CHECK(jobs[2]->state() == (outside.ok() ? RequestState::kDone : RequestState::kRefused));
}

TEST_CASE("a scheduler that is destroyed waits for what runs and cancels what waits") {
  const Lanes lanes(2);
  std::latch running(2);
  std::atomic<bool> open = false;
  const auto body = [&](Job&) {
    running.count_down();
    wait_until([&] { return open.load(); });
    return Status();
  };
  const auto first = make_job(body);
  const auto second = make_job(body);
  const auto waiting = make_job();
  auto scheduler = make_scheduler(lanes);
  for (const auto& job : {first, second, waiting}) REQUIRE(scheduler->submit(job).ok());
  running.wait();
  std::thread opener([&] {
    // The destructor has begun by then.
    waiting->wait_until(Request::kNever);
    open = true;
  });
  scheduler.reset();
  CHECK(first->state() == RequestState::kDone);
  CHECK(second->state() == RequestState::kDone);
  CHECK(first->ends == 1);
  CHECK(waiting->state() == RequestState::kCancelled);
  opener.join();
  // Requests may be used when the scheduler is gone.
  first->cancel();
  CHECK(first->wait().ok());
}

TEST_CASE("a request lives until it has ended, also when its owner drops it") {
  const Lanes lanes(1);
  const int alive = Job::alive;
  std::atomic<int> runs = 0;
  const auto scheduler = make_scheduler(lanes);
  {
    Gate gate(*scheduler);
    for (int i = 0; i < 10; ++i) {
      REQUIRE(scheduler
                  ->submit(make_job([&runs](Job&) {
                    ++runs;
                    return Status();
                  }))
                  .ok());
    }
  }
  scheduler->wait_idle();
  CHECK(runs == 10);
  CHECK(Job::alive == alive);
}

TEST_CASE("what makes no scheduler is refused with a sentence") {
  const Lanes lanes(1);
  CoreGroup* const lane = lanes.pointers[0];
  const auto message = [](std::vector<CoreGroup*> groups, Scheduler::Options options, Scheduler::Handler handler) {
    const auto scheduler = Scheduler::create(std::move(groups), options, std::move(handler));
    if (scheduler.ok()) return std::string("no error");
    CHECK(scheduler.status().error_class() == ErrorClass::kUsage);
    return scheduler.status().message();
  };
  CHECK(message({}, {}, run_job) == "a scheduler needs a lane: give it one core group or more");
  CHECK(message({nullptr}, {}, run_job) == "a lane of a scheduler is null; give it core groups that exist");
  CHECK(message({lane, lane}, {}, run_job) ==
        "two lanes of a scheduler are the same core group; give it each group once");
  CHECK(message({lane}, {.capacity = 0}, run_job) == "a scheduler needs a capacity of 1 or more requests that wait");
  CHECK(message({lane}, {}, nullptr) == "a scheduler needs a handler that runs requests");
  const auto scheduler = make_scheduler(lanes);
  CHECK(scheduler->submit(nullptr).message() == "the request to submit is null");
}

}  // namespace hetero::graph::testing
