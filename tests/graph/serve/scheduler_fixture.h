// What the tests of Scheduler share: requests that do what they are told, lanes, and a request that
// keeps a lane busy.

#pragma once

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "graph/serve/scheduler.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/patience.h"

namespace hetero::graph::testing {

using backend::CoreGroup;
using Clock = Request::Clock;
using WhenFull = Scheduler::WhenFull;
using WhenClosed = Scheduler::WhenClosed;

// A request that says what is to be done.
struct Job : Request {
  explicit Job(std::function<Status(Job&)> job_body) : body(std::move(job_body)) { ++alive; }
  ~Job() override { --alive; }
  void on_end() noexcept override { ++ends; }

  const std::function<Status(Job&)> body;
  size_t lane = SIZE_MAX;
  std::atomic<int> ends{0};
  static inline std::atomic<int> alive{0};
};

inline Status run_job(size_t lane, Request& request) {
  Job& job = static_cast<Job&>(request);
  job.lane = lane;
  return job.body(job);
}

inline std::shared_ptr<Job> make_job(std::function<Status(Job&)> body = [](Job&) { return Status(); }) {
  return std::make_shared<Job>(std::move(body));
}

inline Status stopped() { return {ErrorClass::kCancelled, "stopped"}; }

// Runs until it is asked to stop.
inline Status run_until_stopped(Job& job) {
  wait_until([&] { return job.should_stop(); });
  return stopped();
}

struct Lanes {
  explicit Lanes(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      auto group = CoreGroup::create({.name = "lane" + std::to_string(i)});
      if (!group.ok()) throw std::runtime_error(group.status().message());
      groups.push_back(std::move(group.value()));
      pointers.push_back(groups.back().get());
    }
  }
  std::vector<std::unique_ptr<CoreGroup>> groups;
  std::vector<CoreGroup*> pointers;
};

inline std::unique_ptr<Scheduler> make_scheduler(const Lanes& lanes, Scheduler::Options options = {},
                                                 Scheduler::Handler handler = run_job) {
  auto scheduler = Scheduler::create(lanes.pointers, options, std::move(handler));
  if (!scheduler.ok()) throw std::runtime_error(scheduler.status().message());
  return std::move(scheduler.value());
}

// Keeps a lane busy until it is opened, or dies.
struct Gate {
  explicit Gate(Scheduler& scheduler) {
    job = make_job([this](Job&) {
      entered.count_down();
      opened.wait();
      return Status();
    });
    accepted = scheduler.submit(job).ok();
    if (accepted) entered.wait();
  }
  ~Gate() {
    if (!is_open) open();
    job->wait_until(Request::kNever);
  }
  void open() {
    is_open = true;
    opened.count_down();
  }

  std::latch entered{1};
  std::latch opened{1};
  std::shared_ptr<Job> job;
  bool accepted;
  bool is_open = false;
};

// Every request that was accepted has ended in one way, and nothing is left.
inline void check_all_ended(const Scheduler& scheduler) {
  const SchedulerCounters counters = scheduler.counters();
  CHECK(counters.ended() == counters.submitted);
  CHECK(counters.waiting == 0);
}

}  // namespace hetero::graph::testing
