// Interval packing: no two values that live together overlap, and the arena is as small as it can be, nearly always.

#include "graph/interval_packing.h"

#include <random>

#include "tests/graph/catch.h"

namespace hetero::graph {
namespace {

void check_legal(const std::vector<Interval>& intervals, const IntervalPacking& packing, uint64_t alignment) {
  uint64_t total = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    REQUIRE(packing.offset(i) % alignment == 0);
    total = std::max(total, packing.offset(i) + intervals[i].bytes);
    for (size_t k = 0; k < i; ++k) {
      if (intervals[i].last < intervals[k].first || intervals[k].last < intervals[i].first) continue;
      const bool apart = packing.offset(i) + intervals[i].bytes <= packing.offset(k) ||
                         packing.offset(k) + intervals[k].bytes <= packing.offset(i);
      REQUIRE(apart);
    }
  }
  REQUIRE(total <= packing.total_bytes());
  REQUIRE(packing.total_bytes() >= packing.lower_bound());
}

TEST_CASE("nothing needs no arena") {
  IntervalPacking packing;
  packing.pack({}, 64);
  CHECK(packing.total_bytes() == 0);
  CHECK(packing.lower_bound() == 0);
}

TEST_CASE("a chain needs two places") {
  std::vector<Interval> chain;
  for (uint32_t i = 0; i < 100; ++i) chain.push_back({i, i + 1, 4096});
  IntervalPacking packing;
  packing.pack(chain, 64);
  check_legal(chain, packing, 64);
  CHECK(packing.total_bytes() == 2 * 4096);
}

TEST_CASE("a value is alive where it ends and where another begins") {
  const std::vector<Interval> intervals = {{0, 3, 64}, {3, 5, 64}, {4, 4, 64}};
  IntervalPacking packing;
  packing.pack(intervals, 64);
  check_legal(intervals, packing, 64);
  CHECK(packing.lower_bound() == 128);
}

TEST_CASE("an order that greedy choices miss is found") {
  // By size, the largest go to the bottom and split the rest.
  const std::vector<Interval> intervals = {{0, 1, 3 * 64}, {1, 2, 2 * 64}, {2, 3, 3 * 64}, {0, 0, 1 * 64},
                                           {3, 3, 1 * 64}, {1, 1, 1 * 64}, {2, 2, 1 * 64}};
  IntervalPacking packing;
  packing.pack(intervals, 64);
  check_legal(intervals, packing, 64);
  CHECK(packing.total_bytes() <= packing.lower_bound() + 64);
}

TEST_CASE("random lifetimes are packed within two percent of the bound on average") {
  std::mt19937 random(11);
  IntervalPacking packing;
  double total = 0;
  double bound = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Interval> intervals;
    const uint32_t count = 1 + random() % 200;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t first = random() % 300;
      const uint32_t length = random() % 10 == 0 ? random() % 200 : random() % 6;
      intervals.push_back({first, first + length, 1 + random() % (1u << (6 + random() % 12))});
    }
    packing.pack(intervals, 64);
    check_legal(intervals, packing, 64);
    total += static_cast<double>(packing.total_bytes());
    bound += static_cast<double>(packing.lower_bound());
  }
  CHECK(total / bound <= 1.02);
}

}  // namespace
}  // namespace hetero::graph
