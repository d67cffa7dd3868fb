#include "backend/base/parallel.h"

#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

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

}  // namespace
}  // namespace hetero::backend
