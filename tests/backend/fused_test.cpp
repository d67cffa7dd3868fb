#include "backend/cpu/fused_launch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "backend/parallel.h"
#include "tests/backend/catch.h"
#include "tests/backend/fused_program.h"
#include "tests/backend/portable_functions.h"

namespace hetero::backend {
namespace {

using namespace testing;

// Runs each range on a thread of its own.
template <int kThreads>
inline constexpr ParallelPool kPool = {[](int64_t begin, int64_t end, int64_t grain, RangeFunction body) {
                                         const int64_t share = std::max(grain, (end - begin + kThreads - 1) / kThreads);
                                         std::vector<std::thread> threads;
                                         for (int64_t at = begin; at < end; at += share) {
                                           threads.emplace_back([=] { body(at, std::min(at + share, end)); });
                                         }
                                         for (std::thread& thread : threads) thread.join();
                                       },
                                       [] { return int64_t{kThreads}; }};

struct PoolScope {
  explicit PoolScope(const ParallelPool& pool) { set_parallel_pool(&pool); }
  ~PoolScope() { set_parallel_pool(nullptr); }
};

// Prepares with a launch that was used before, runs, and compares all memory.
void check_case(const RandomCase& c, FusedLaunch& launch) {
  const Status status = prepare_fused(c.kernel, c.space, launch);
  INFO((status.ok() ? "" : status.message()));
  REQUIRE(status.ok());
  std::vector<std::vector<char>> expected = c.memory;
  interpret(c.kernel, c.space, c.pointers(expected).data(), c.numbers.data());
  std::vector<std::vector<char>> memory = c.memory;
  run_fused(launch, c.pointers(memory).data(), c.numbers.data());
  const bool same = memory == expected;
  REQUIRE(same);
}

TEST_CASE("random kernels compute what an interpreter computes") {
  FusedLaunch launch;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const RandomCase c = random_case(random, seed % 4 == 0 ? 20000 : 600, false);
    check_case(c, launch);
  }
}

TEST_CASE("random kernels over long rows compute what an interpreter computes") {
  FusedLaunch launch;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const RandomCase c = random_case(random, 150000, true);
    check_case(c, launch);
  }
}

TEST_CASE("random kernels on several threads compute what an interpreter computes") {
  const PoolScope scope(kPool<3>);
  FusedLaunch launch;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(1000 + seed);
    const RandomCase c = random_case(random, 150000, seed % 3 != 0);
    check_case(c, launch);
  }
}

}  // namespace
}  // namespace hetero::backend
