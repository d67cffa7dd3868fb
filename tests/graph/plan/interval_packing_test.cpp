// Interval packing: no two values that live together overlap, and the arena is as small as it can
// be, nearly always.
//
// `hetero_graph_tests "[packing-table]"` prints what becomes of the hard instances, and in which
// time.

#include "graph/plan/interval_packing.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "tests/catch/catch.h"
#include "tests/graph/placement/hard_instances.h"

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
  REQUIRE(packing.total_bytes() - total < alignment);
  REQUIRE(packing.total_bytes() >= packing.lower_bound());
}

bool overlap(const Interval& a, uint64_t offset_a, const Interval& b, uint64_t offset_b) {
  return a.first <= b.last && b.first <= a.last && offset_a < offset_b + b.bytes && offset_b < offset_a + a.bytes;
}

// Tries every offset of every interval.
bool fits_by_brute_force(const std::vector<Interval>& intervals, uint64_t capacity, std::vector<uint64_t>& offsets) {
  const size_t k = offsets.size();
  if (k == intervals.size()) return true;
  for (uint64_t offset = 0; offset + intervals[k].bytes <= capacity; ++offset) {
    bool free = true;
    for (size_t i = 0; free && i < k; ++i) free = !overlap(intervals[i], offsets[i], intervals[k], offset);
    if (!free) continue;
    offsets.push_back(offset);
    if (fits_by_brute_force(intervals, capacity, offsets)) return true;
    offsets.pop_back();
  }
  return false;
}

uint64_t smallest_arena(const std::vector<Interval>& intervals, uint64_t lower_bound) {
  for (uint64_t capacity = lower_bound;; ++capacity) {
    std::vector<uint64_t> offsets;
    if (fits_by_brute_force(intervals, capacity, offsets)) return capacity;
  }
}

std::vector<uint64_t> offsets_of(const IntervalPacking& packing, size_t count) {
  std::vector<uint64_t> offsets;
  for (size_t i = 0; i < count; ++i) offsets.push_back(packing.offset(i));
  return offsets;
}

double ratio(const IntervalPacking& packing) {
  return static_cast<double>(packing.total_bytes()) / static_cast<double>(packing.lower_bound());
}

TEST_CASE("nothing needs no arena", "[packing]") {
  IntervalPacking packing;
  packing.pack({}, 64);
  CHECK(packing.total_bytes() == 0);
  CHECK(packing.lower_bound() == 0);
}

TEST_CASE("a chain needs two places", "[packing]") {
  std::vector<Interval> chain;
  for (uint32_t i = 0; i < 100; ++i) chain.push_back({i, i + 1, 4096});
  IntervalPacking packing;
  packing.pack(chain, 64);
  check_legal(chain, packing, 64);
  CHECK(packing.total_bytes() == 2 * 4096);
}

TEST_CASE("a value is alive where it ends and where another begins", "[packing]") {
  const std::vector<Interval> intervals = {{0, 3, 64}, {3, 5, 64}, {4, 4, 64}};
  IntervalPacking packing;
  packing.pack(intervals, 64);
  check_legal(intervals, packing, 64);
  CHECK(packing.lower_bound() == 128);
}

TEST_CASE("an order that greedy choices miss is found", "[packing]") {
  // By size, the largest go to the bottom and split the rest.
  const std::vector<Interval> intervals = {{0, 1, 3 * 64}, {1, 2, 2 * 64}, {2, 3, 3 * 64}, {0, 0, 1 * 64},
                                           {3, 3, 1 * 64}, {1, 1, 1 * 64}, {2, 2, 1 * 64}};
  IntervalPacking packing;
  packing.pack(intervals, 64);
  check_legal(intervals, packing, 64);
  CHECK(packing.total_bytes() <= packing.lower_bound() + 64);
}

TEST_CASE("random lifetimes are packed within two percent of the bound on average", "[packing]") {
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

TEST_CASE("one value lies at the bottom", "[packing]") {
  IntervalPacking packing;
  packing.pack(std::vector<Interval>{{7, 9, 100}}, 64);
  CHECK(packing.offset(0) == 0);
  CHECK(packing.total_bytes() == 128);
}

TEST_CASE("values without bytes take no space and disturb no search", "[packing]") {
  std::vector<Interval> intervals = {{7, 9, 3}, {2, 5, 2}, {0, 1, 3}, {2, 4, 2}, {4, 6, 1}, {1, 3, 2}, {5, 8, 3}};
  IntervalPacking packing;
  packing.pack(intervals, 1);
  const uint64_t total = packing.total_bytes();
  for (uint32_t i = 0; i < 9; ++i) intervals.push_back({i, i + i % 3, 0});
  packing.pack(intervals, 1);
  check_legal(intervals, packing, 1);
  CHECK(packing.total_bytes() == total);
  packing.pack(std::vector<Interval>{{0, 3, 0}, {1, 2, 0}}, 1);
  CHECK(packing.total_bytes() == 0);
}

TEST_CASE("tiny problems get the smallest arena there is", "[packing]") {
  std::mt19937 random(3);
  IntervalPacking packing;
  int greedy_misses = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<Interval> intervals;
    const uint32_t count = 1 + random() % 8;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t first = random() % 6;
      const uint32_t length = random() % 4;
      intervals.push_back({first, first + length, random() % 5});
    }
    packing.pack(intervals, 1, 0);
    const uint64_t greedy = packing.total_bytes();
    packing.pack(intervals, 1);
    check_legal(intervals, packing, 1);
    REQUIRE(packing.total_bytes() == smallest_arena(intervals, packing.lower_bound()));
    if (greedy > packing.total_bytes()) ++greedy_misses;
  }
  CHECK(greedy_misses > 0);
}

TEST_CASE("where the bound cannot be reached, the search proves it and ends", "[packing]") {
  const std::vector<std::vector<Interval>> problems = {
      {{7, 9, 3}, {2, 5, 2}, {0, 1, 3}, {2, 4, 2}, {4, 6, 1}, {1, 3, 2}, {5, 8, 3}},
      {{0, 2, 2},
       {3, 5, 4},
       {3, 4, 3},
       {1, 5, 1},
       {0, 3, 2},
       {1, 1, 3},
       {4, 6, 3},
       {2, 2, 2},
       {0, 2, 3},
       {2, 3, 1},
       {0, 0, 4},
       {1, 5, 2}}};
  for (const std::vector<Interval>& intervals : problems) {
    IntervalPacking packing;
    packing.pack(intervals, 1, INT64_MAX);  // for ever, were it not proved
    check_legal(intervals, packing, 1);
    CHECK(packing.total_bytes() == packing.lower_bound() + 1);
    CHECK(packing.total_bytes() == smallest_arena(intervals, packing.lower_bound()));
  }
}

TEST_CASE("parts of time that share no value are packed apart", "[packing]") {
  const std::vector<Interval> hard = {{7, 9, 3}, {2, 5, 2}, {0, 1, 3}, {2, 4, 2}, {4, 6, 1}, {1, 3, 2}, {5, 8, 3}};
  std::vector<Interval> intervals;
  for (uint32_t part = 0; part < 3; ++part) {
    const uint64_t scale = part == 1 ? 64 : 10;
    for (const Interval& i : hard) intervals.push_back({i.first + part * 10, i.last + part * 10, i.bytes * scale});
  }
  IntervalPacking packing;
  packing.pack(intervals, 1);
  check_legal(intervals, packing, 1);
  CHECK(packing.lower_bound() == 6 * 64);
  CHECK(packing.total_bytes() == 7 * 64);
}

TEST_CASE("many pieces within pieces do not exhaust the stack", "[packing]") {
  const std::vector<Interval> hard = {{7, 9, 3}, {2, 5, 2}, {0, 1, 3}, {2, 4, 2}, {4, 6, 1}, {1, 3, 2}, {5, 8, 3}};
  std::vector<Interval> intervals;
  for (uint32_t link = 0; link < 3000; ++link) {
    for (const Interval& i : hard) intervals.push_back({i.first + link * 9, i.last + link * 9, i.bytes});
  }
  IntervalPacking packing;
  packing.pack(intervals, 1, 0);
  const uint64_t greedy = packing.total_bytes();
  REQUIRE(greedy > packing.lower_bound());
  packing.pack(intervals, 1, 300'000'000);
  check_legal(intervals, packing, 1);
  CHECK(packing.total_bytes() <= greedy);
}

TEST_CASE("a part that is searched may become smaller than another that makes the bound", "[packing]") {
  for (const HardInstance& instance : hard_instances()) {
    IntervalPacking packing;
    packing.pack(instance.intervals, 64, 0);
    const uint64_t bound = packing.lower_bound() / 640 * 704;
    std::vector<Interval> intervals = instance.intervals;
    intervals.push_back({2'000'000, 2'000'001, bound});
    packing.pack(intervals, 64, 0);
    CHECK(packing.total_bytes() > bound);
    packing.pack(intervals, 64);
    check_legal(intervals, packing, 64);
    CHECK(packing.lower_bound() == bound);
    CHECK(packing.total_bytes() == bound);
  }
}

TEST_CASE("sizes near 2^62 do not overflow", "[packing]") {
  constexpr uint64_t kUnit = uint64_t{1} << 60;
  std::vector<Interval> intervals = {{7, 9, 3}, {2, 5, 2}, {0, 1, 3}, {2, 4, 2}, {4, 6, 1}, {1, 3, 1}, {5, 8, 3}};
  for (Interval& interval : intervals) interval.bytes *= kUnit - 64;
  IntervalPacking packing;
  packing.pack(intervals, 64);
  check_legal(intervals, packing, 64);
  CHECK(packing.total_bytes() <= 7 * kUnit);

  const std::vector<Interval> huge = {{0, 1, 4 * kUnit - 1}, {1, 2, 4 * kUnit - 1}, {2, 3, 4 * kUnit - 1}};
  packing.pack(huge, 64);
  check_legal(huge, packing, 64);
  CHECK(packing.total_bytes() == 8 * kUnit);
}

TEST_CASE("the same intervals get the same offsets, whatever was packed before", "[packing]") {
  const std::vector<HardInstance> instances = hard_instances();
  const std::vector<Interval>& intervals = instances.front().intervals;
  IntervalPacking fresh;
  fresh.pack(intervals, 64, 5'000'000);
  IntervalPacking used;
  used.pack(instances.back().intervals, 64, 5'000'000);
  used.pack(intervals, 64, 5'000'000);
  CHECK(offsets_of(used, intervals.size()) == offsets_of(fresh, intervals.size()));
  CHECK(used.total_bytes() == fresh.total_bytes());
}

TEST_CASE("the search never makes the arena larger, whatever its effort", "[packing]") {
  std::mt19937 random(17);
  IntervalPacking packing;
  int better = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<Interval> intervals;
    const uint32_t count = 50 + random() % 200;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t first = random() % 200;
      const uint32_t length = random() % (2 + count / 4);
      intervals.push_back({first, first + length, 1 + random() % (1u << (6 + random() % 12))});
    }
    packing.pack(intervals, 64, 0);
    const uint64_t greedy = packing.total_bytes();
    for (const int64_t effort : {100'000, 1'000'000, 4'000'000}) {
      packing.pack(intervals, 64, effort);
      check_legal(intervals, packing, 64);
      REQUIRE(packing.total_bytes() <= greedy);
    }
    if (packing.total_bytes() < greedy) ++better;
  }
  CHECK(better > 0);
}

TEST_CASE("each hard instance is packed within five percent of the bound", "[packing]") {
  const std::vector<HardInstance> instances = hard_instances();
  REQUIRE(instances.size() == 11);
  IntervalPacking packing;
  double sum = 0;
  for (const HardInstance& instance : instances) {
    packing.pack(instance.intervals, 64, 0);
    const uint64_t greedy = packing.total_bytes();
    packing.pack(instance.intervals, 64);
    check_legal(instance.intervals, packing, 64);
    INFO(instance.name << ": " << ratio(packing));
    CHECK(packing.total_bytes() < greedy);
    CHECK(ratio(packing) <= 1.05);
    sum += ratio(packing);
  }
  CHECK(sum / static_cast<double>(instances.size()) <= 1.02);
}

TEST_CASE("table of the hard instances", "[.][packing-table]") {
  std::printf("%-8s %7s %11s %7s %7s %6s %9s %6s\n", "instance", "buffers", "lower bound", "greedy", "usual", "ms",
              "3e8 steps", "ms");
  IntervalPacking packing;
  double sums[3] = {};
  const auto timed = [&](const HardInstance& instance, std::optional<int64_t> effort, double& sum) {
    const auto begin = std::chrono::steady_clock::now();
    packing.pack(instance.intervals, 64, effort);
    check_legal(instance.intervals, packing, 64);
    sum += ratio(packing);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  };
  const std::vector<HardInstance> instances = hard_instances();
  for (const HardInstance& instance : instances) {
    timed(instance, 0, sums[0]);
    const double greedy = ratio(packing);
    const double usual_ms = timed(instance, std::nullopt, sums[1]);
    const double usual = ratio(packing);
    const double most_ms = timed(instance, 300'000'000, sums[2]);
    std::printf("%-8s %7zu %11llu %7.4f %7.4f %6.1f %9.4f %6.1f\n", instance.name.c_str(), instance.intervals.size(),
                static_cast<unsigned long long>(packing.lower_bound()), greedy, usual, usual_ms, ratio(packing),
                most_ms);
  }
  const double count = static_cast<double>(instances.size());
  std::printf("%-8s %7s %11s %7.4f %7.4f %6s %9.4f\n", "mean", "", "", sums[0] / count, sums[1] / count, "",
              sums[2] / count);
}

}  // namespace
}  // namespace hetero::graph
