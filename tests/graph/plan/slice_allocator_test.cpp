// SliceAllocator: slices do not overlap while taken, merge when given back, and carry who used
// them.

#include "graph/plan/slice_allocator.h"

#include <map>
#include <random>

#include "tests/catch/catch.h"

namespace hetero::graph {

TEST_CASE("slices in use never overlap, and free neighbours merge") {
  std::mt19937 random(3);
  SliceAllocator arena;
  arena.reset(false, UINT64_MAX);
  std::map<uint64_t, uint32_t> taken;  // by offset
  for (int step = 0; step < 20000; ++step) {
    const bool take = taken.empty() || (taken.size() < 60 && random() % 2 == 0);
    if (take) {
      const uint64_t limit = random() % 5 == 0 ? 100000 : 700;
      const uint64_t bytes = random() % limit;
      const uint32_t slice = arena.allocate(bytes, nullptr, nullptr);
      REQUIRE(arena.size(slice) >= bytes);
      REQUIRE(arena.offset(slice) % SliceAllocator::kAlignment == 0);
      const auto [where, fresh] = taken.emplace(arena.offset(slice), slice);
      REQUIRE(fresh);
      if (const auto next = std::next(where); next != taken.end()) {
        REQUIRE(arena.offset(slice) + arena.size(slice) <= next->first);
      }
      if (where != taken.begin()) {
        const auto before = std::prev(where);
        REQUIRE(before->first + arena.size(before->second) <= arena.offset(slice));
      }
      REQUIRE(arena.offset(slice) + arena.size(slice) <= arena.high_water());
    } else {
      const auto victim = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      arena.free(victim->second, nullptr);
      taken.erase(victim);
    }
  }
  for (const auto& [offset, slice] : taken) arena.free(slice, nullptr);
  const uint64_t all = arena.high_water();
  const uint32_t whole = arena.allocate(all, nullptr, nullptr);
  CHECK(arena.offset(whole) == 0);
  CHECK(arena.high_water() == all);
}

TEST_CASE("a slice goes only to who comes after its users, unless memory is short") {
  SliceAllocator arena;
  arena.reset(true, 256);
  const Clock nothing{};
  const Clock used{0, 0, 0, 7, 0, 0};
  Clock required{};
  arena.free(arena.allocate(128, &nothing, &required), &used);

  // Unaware of instruction 6: other bytes, while there are any.
  const uint32_t other = arena.allocate(128, &nothing, &required);
  CHECK(arena.offset(other) == 128);
  CHECK(required == nothing);

  // The limit is reached: the same bytes, after a wait.
  const uint32_t waiting = arena.allocate(128, &nothing, &required);
  CHECK(arena.offset(waiting) == 0);
  CHECK(required == used);

  // Aware of it: the same bytes at once.
  arena.free(waiting, &used);
  required = {};
  const uint32_t aware = arena.allocate(128, &used, &required);
  CHECK(arena.offset(aware) == 0);
  CHECK(required == nothing);
  CHECK(arena.high_water() == 256);
}

}  // namespace hetero::graph
