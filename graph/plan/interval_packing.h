// Interval packing: places values with lifetimes in one arena, so that the arena is small.
//
// The problem is dynamic storage allocation: values that live at the same time must not overlap.
// The arena is at least as large as the most bytes that live at once, the lower bound. The problem
// is NP-hard, and nearly always easy:
//
// 1. Place values in an order, each into the smallest gap that holds it, or at the end (best fit).
// 2. Try a few orders: by size, by size times lifetime, by first use. Stop at the lower bound.
// 3. While the bound is missed and effort remains, search for an arrangement below a smaller
//    capacity (interval_packing.cpp). The search proves what is impossible, so for a few values it
//    ends with the smallest arena there is.
//
// Effort is counted in steps, never in time: the same intervals get the same offsets on every
// machine. Ordinary programs end with an order of step 2 and pay nothing for step 3.
//
// Sources: Y. Pisarchyk, J. Lee, "Efficient memory management for deep neural net inference", 2020
// (greedy by size); M. Moffitt, "MiniMalloc", 2023 (the search from the bottom up).
// interval_packing.cpp names the others.
//
// Thread safety: a packing belongs to one thread; it keeps its memory from call to call.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace hetero::graph {

struct Interval {
  uint32_t first;  // positions at which it is first and last used, both included
  uint32_t last;
  uint64_t bytes;
};

class IntervalPacking {
 public:
  // The effort that pack() spends by default: half a second to a second at most.
  static constexpr int64_t kMostEffort = 500'000'000;

  // Finds an offset for each interval, a multiple of `alignment`. `effort` is how many steps step 3
  // may take, some 400 million a second (0: it is left out); without it, as many as the intervals
  // are worth, a second at most.
  // REQUIRES: all bytes together, each value rounded up to the alignment, are below 2^64.
  void pack(std::span<const Interval> intervals, uint64_t alignment, std::optional<int64_t> effort = std::nullopt);

  uint64_t offset(size_t interval) const { return best_[interval]; }
  uint64_t total_bytes() const { return total_; }
  // The most bytes that live at once, each value rounded up to the alignment.
  uint64_t lower_bound() const { return lower_bound_; }

 private:
  uint64_t place(std::span<const uint32_t> order, uint64_t limit, bool by_time);
  bool keep_if_better(uint64_t total);
  void find_lower_bound();
  void search(uint64_t alignment, int64_t effort);

  struct Placed {
    uint64_t offset, end;
    uint32_t first, last;
  };

  std::vector<Interval> intervals_;  // rounded
  std::vector<uint32_t> order_;
  std::vector<Placed> placed_;  // by offset
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t> best_;
  // A release is the complement of what it releases.
  std::vector<std::pair<uint64_t, uint64_t>> changes_;
  uint64_t total_ = 0;
  uint64_t lower_bound_ = 0;
};

}  // namespace hetero::graph
