// Helpers that come in time, late, or not at all.

#include "backend/threads/helpers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/backend/child.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

void start_nothing() {}

// Whether each index is done once, whoever comes.
bool does_all(Helpers& helpers, int64_t threads, int64_t count, int64_t grain) {
  std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
  RangePieces pieces(0, count, grain, threads);
  helpers.run(pieces, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
  });
  return std::all_of(seen.begin(), seen.end(), [](const std::atomic<int>& times) { return times == 1; });
}

TEST_CASE("helpers do each index of a loop once") {
  for (const int64_t count : {1, 3}) {
    Helpers helpers(count, &start_nothing);
    for (int round = 0; round < 2000; ++round) {
      REQUIRE(does_all(helpers, 1 + round % (count + 1), 1 + round % 97, 1 + round % 5));
      if (round % 100 == 0) helpers.rest();
      // Long enough that they sleep.
      if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

TEST_CASE("helpers take part, and begin with what they were told") {
  static std::atomic<int> started;
  static std::atomic<bool> let_go;
  started = 0;
  let_go = false;
  Helpers helpers(2, [] {
    ++started;
    while (!let_go) std::this_thread::yield();
  });
  // Nobody waits for one that has not come.
  REQUIRE(does_all(helpers, 3, 100, 1));
  let_go = true;
  // With two at work on a piece each, the third comes.
  std::atomic<int> inside{0};
  RangePieces pieces(0, 3, 1, 3);
  helpers.run(pieces, 3, [&](int64_t begin, int64_t end) {
    inside += static_cast<int>(end - begin);
    while (inside < 3) std::this_thread::yield();
  });
  REQUIRE(inside == 3);
  REQUIRE(started == 2);
}

TEST_CASE("what a body raises comes to the caller, and the next loop runs") {
  Helpers helpers(2, &start_nothing);
  for (int round = 0; round < 200; ++round) {
    RangePieces pieces(0, 30, 1, 3);
    const auto raise = [&](int64_t begin, int64_t end) {
      if (begin <= round % 30 && round % 30 < end) throw std::runtime_error("of the body");
    };
    REQUIRE_THROWS_WITH(helpers.run(pieces, 3, raise), "of the body");
    REQUIRE(does_all(helpers, 3, 50, 1));
  }
}

TEST_CASE("helpers end with their object, also where they sleep, never worked or have not begun") {
  static std::atomic<int> living;
  struct Life {
    ~Life() { --living; }
  };
  for (int round = 0; round < 60; ++round) {
    Helpers helpers(2, [] {
      ++living;
      static thread_local Life life;
      (void)life;
    });
    if (round % 3 != 0) REQUIRE(does_all(helpers, 3, 40, 1));
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Some may not have begun.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 0; i < 1000 && living != 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(living == 0);
}

TEST_CASE("each thread has helpers of its own") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      Helpers helpers(1, &start_nothing);
      for (int round = 0; round < 300; ++round) wrong += does_all(helpers, 2, 64, 1) ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  REQUIRE(wrong == 0);
}

TEST_CASE("in a forked child the caller does all") {
  Helpers helpers(2, &start_nothing);
  REQUIRE(does_all(helpers, 3, 100, 1));
  const testing::ChildOutcome outcome = testing::run_in_child([&] {
    for (int round = 0; round < 20; ++round) {
      if (!does_all(helpers, 3, 100, 1)) return 1;
    }
    return 0;
  });
  REQUIRE(outcome.exit_code == 0);
}

}  // namespace
}  // namespace hetero::backend
