// Ranges are disjoint, come back joined, and are taken where they fit best.

#include "backend/memory/range_allocator.h"

#include <map>
#include <random>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

TEST_CASE("range allocator: the smallest range that fits is taken, of equal ones the lowest") {
  RangeAllocator ranges(1000);
  for (uint64_t start = 0; start < 1000; start += 100) REQUIRE(ranges.take(100) == start);
  CHECK(ranges.take(1) == std::nullopt);
  ranges.give(0, 100);
  ranges.give(100, 100);
  ranges.give(500, 100);
  ranges.give(300, 100);
  CHECK(ranges.free().size() == 3);
  CHECK(ranges.take(50) == 300u);
  CHECK(ranges.take(100) == 500u);
  CHECK(ranges.take(201) == std::nullopt);
  CHECK(ranges.take(200) == 0u);
  CHECK(ranges.take(50) == 350u);
  CHECK(ranges.free().empty());
}

TEST_CASE("range allocator: whatever the order, ranges are disjoint and all is one range at last") {
  std::mt19937 random(1);
  constexpr uint64_t kBytes = 4000;
  RangeAllocator ranges(kBytes);
  std::map<uint64_t, uint64_t> taken;  // bytes by start
  uint64_t free_bytes = kBytes;
  int refused = 0;
  for (int step = 0; step < 4000; ++step) {
    if (taken.empty() || random() % 3 != 0) {
      const uint64_t bytes = 1 + random() % 300;
      const std::optional<uint64_t> start = ranges.take(bytes);
      if (!start.has_value()) {
        for (const auto& [at, available] : ranges.free()) REQUIRE(available < bytes);
        ++refused;
        continue;
      }
      const auto next = taken.lower_bound(*start);
      REQUIRE(*start + bytes <= (next == taken.end() ? kBytes : next->first));
      if (next != taken.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second <= *start);
      taken.emplace(*start, bytes);
      free_bytes -= bytes;
    } else {
      const auto range = std::next(taken.begin(), static_cast<int64_t>(random() % taken.size()));
      ranges.give(range->first, range->second);
      free_bytes += range->second;
      taken.erase(range);
    }
    uint64_t sum = 0;
    uint64_t end = 0;
    for (const auto& [start, bytes] : ranges.free()) {
      REQUIRE((sum == 0 || start > end));
      end = start + bytes;
      sum += bytes;
    }
    REQUIRE(sum == free_bytes);
  }
  CHECK(refused > 0);
  for (const auto& [start, bytes] : taken) ranges.give(start, bytes);
  REQUIRE(ranges.free().size() == 1);
  CHECK(ranges.take(kBytes) == 0u);
}

TEST_CASE("A given range is taken if all of it is free, and no other range is touched", "[memory]") {
  RangeAllocator ranges(10);
  CHECK(ranges.take_at(3, 2));
  for (const auto& [start, bytes] : {std::pair<uint64_t, uint64_t>{3, 1}, {4, 2}, {2, 2}, {0, 10}, {9, 2}, {10, 1}}) {
    CHECK_FALSE(ranges.take_at(start, bytes));
  }
  CHECK_FALSE(ranges.take_at(5, UINT64_MAX));
  CHECK(ranges.take_at(0, 3));
  CHECK(ranges.take_at(9, 1));
  CHECK(ranges.free().size() == 1);
  CHECK(ranges.take_at(5, 4));
  CHECK(ranges.free().empty());
  CHECK_FALSE(ranges.take_at(0, 1));
  ranges.give(3, 6);
  CHECK(ranges.take_at(4, 1));
  CHECK(ranges.free().size() == 2);
}

}  // namespace
}  // namespace hetero::backend
