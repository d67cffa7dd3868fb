#include "backend/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/barrier.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

Ranges ranges_of(int64_t begin, int64_t end, int64_t grain) {
  Ranges ranges;
  parallel_for(begin, end, grain, [&](int64_t from, int64_t to) { ranges.emplace_back(from, to); });
  return ranges;
}

int pool_runs = 0;

// Calls the body in two halves, the first on another thread.
const ParallelPool kTwoHalves = {[](int64_t begin, int64_t end, int64_t, RangeFunction body) {
                                   ++pool_runs;
                                   const int64_t middle = begin + (end - begin) / 2;
                                   std::thread([&] { body(begin, middle); }).join();
                                   body(middle, end);
                                 },
                                 [] { return int64_t{2}; }};

TEST_CASE("without a pool parallel_for runs serially in one piece") {
  REQUIRE(thread_count() == 1);
  REQUIRE(ranges_of(3, 1000, 1) == Ranges{{3, 1000}});
}

TEST_CASE("an empty range calls nothing") {
  REQUIRE(ranges_of(5, 5, 1).empty());
  REQUIRE(ranges_of(6, 5, 1).empty());
}

TEST_CASE("a connected pool gets the work that is larger than a grain") {
  set_parallel_pool(&kTwoHalves);
  pool_runs = 0;
  REQUIRE(thread_count() == 2);
  REQUIRE(ranges_of(0, 10, 10) == Ranges{{0, 10}});
  REQUIRE(pool_runs == 0);
  REQUIRE(ranges_of(0, 10, 4) == Ranges{{0, 5}, {5, 10}});
  REQUIRE(pool_runs == 1);
  set_parallel_pool(nullptr);
  REQUIRE(thread_count() == 1);
  REQUIRE(ranges_of(0, 10, 4) == Ranges{{0, 10}});
}

// A thread for each member, or for two.
template <int64_t kEach>
void run_on_threads(int64_t members, RangeFunction body) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < members; i += kEach) {
    threads.emplace_back([&, i] { body(i, std::min(members, i + kEach)); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("members of a barrier are in one step at a time") {
  constexpr int64_t kMembers = 5, kSteps = 3000;
  for (const auto run : {&run_on_threads<1>, &run_on_threads<2>, static_cast<decltype(&run_on_threads<1>)>(nullptr)}) {
    const ParallelPool pool = {kTwoHalves.run, kTwoHalves.thread_count, run};
    set_parallel_pool(&pool);
    std::vector<int64_t> done(kMembers);  // written by one member each, and read by all
    std::atomic<int64_t> wrong = 0;
    Barrier barrier(kMembers);
    run_at_once(kMembers, [&](int64_t begin, int64_t end) {
      for (int64_t step = 1; step <= kSteps; ++step) {
        for (int64_t member = begin; member < end; ++member) done[static_cast<size_t>(member)] = step;
        bool all = barrier.wait(end - begin);
        for (const int64_t its : done) all = all && its == step;
        if (!barrier.wait(end - begin) || !all) ++wrong;
      }
    });
    set_parallel_pool(nullptr);
    REQUIRE(wrong == 0);
    REQUIRE(done == std::vector<int64_t>(kMembers, kSteps));
  }
}

TEST_CASE("nobody waits for a member that gave up") {
  const ParallelPool pool = {kTwoHalves.run, kTwoHalves.thread_count, &run_on_threads<1>};
  set_parallel_pool(&pool);
  Barrier barrier(4);
  std::atomic<int> stopped = 0;
  run_at_once(4, [&](int64_t member, int64_t) {
    const bool all = barrier.wait(1);  // false where the other gave up before the caller woke
    if (member == 2) return barrier.give_up();
    while (all && barrier.wait(1)) {
    }
    ++stopped;
  });
  set_parallel_pool(nullptr);
  REQUIRE(stopped == 3);
}

TEST_CASE("run_at_once calls nothing for no members, and one member on the calling thread") {
  const ParallelPool pool = {kTwoHalves.run, kTwoHalves.thread_count, &run_on_threads<1>};
  set_parallel_pool(&pool);
  std::vector<std::thread::id> ids;
  for (const int64_t members : {0, 1})
    run_at_once(members, [&](int64_t, int64_t) { ids.push_back(std::this_thread::get_id()); });
  set_parallel_pool(nullptr);
  REQUIRE(ids == std::vector{std::this_thread::get_id()});
}

}  // namespace
}  // namespace hetero::backend
