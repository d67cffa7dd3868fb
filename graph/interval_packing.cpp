#include "graph/interval_packing.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace hetero::graph {
namespace {

constexpr int64_t kEffort = 2'000'000;  // comparisons: about two milliseconds
constexpr size_t kExactIntervals = 10;

}  // namespace

void IntervalPacking::pack(std::span<const Interval> intervals, uint64_t alignment) {
  intervals_.assign(intervals.begin(), intervals.end());
  for (Interval& interval : intervals_) interval.bytes = (interval.bytes + alignment - 1) / alignment * alignment;
  find_lower_bound();
  total_ = UINT64_MAX;
  effort_ = kEffort;
  offsets_.resize(intervals_.size());
  best_.assign(intervals_.size(), 0);
  order_.resize(intervals_.size());
  std::iota(order_.begin(), order_.end(), 0);

  const auto by = [&](auto key) {
    std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      const auto x = key(intervals_[a]);
      const auto y = key(intervals_[b]);
      return x > y || (x == y && a < b);
    });
  };
  by([](const Interval& i) { return UINT32_MAX - i.first; });
  bool done = keep_if_better(place(order_, total_, true));
  if (!done) {
    by([](const Interval& i) { return static_cast<double>(i.bytes) * (i.last - i.first + 1); });
    done = keep_if_better(place(order_, total_, false));
  }
  if (!done) {
    by([](const Interval& i) { return i.bytes; });
    done = keep_if_better(place(order_, total_, false));
  }
  if (done || effort_ <= 0) return;
  boost_peak();
  if (total_ > lower_bound_ && intervals_.size() <= kExactIntervals) search_all_orders();
}

void IntervalPacking::find_lower_bound() {
  changes_.clear();
  for (const Interval& interval : intervals_) {
    // What ends at a position still lives there: ends sort behind beginnings.
    changes_.emplace_back(uint64_t{interval.first} * 2, static_cast<int64_t>(interval.bytes));
    changes_.emplace_back(uint64_t{interval.last} * 2 + 1, -static_cast<int64_t>(interval.bytes));
  }
  std::sort(changes_.begin(), changes_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  int64_t live = 0;
  int64_t most = 0;
  for (const auto& [position, change] : changes_) {
    live += change;
    most = std::max(most, live);
  }
  lower_bound_ = static_cast<uint64_t>(most);
}

// Returns the arena's size, or `limit` as soon as it is reached. In order of time, what has ended is of no concern any more.
uint64_t IntervalPacking::place(std::span<const uint32_t> order, uint64_t limit, bool by_time) {
  placed_.clear();
  uint64_t total = 0;
  for (const uint32_t index : order) {
    const Interval& interval = intervals_[index];
    if (by_time) std::erase_if(placed_, [&](const Placed& other) { return other.last < interval.first; });
    uint64_t end = 0;  // of what was passed and lives at the same time
    uint64_t best_offset = UINT64_MAX;
    uint64_t best_gap = UINT64_MAX;
    for (const Placed& other : placed_) {
      if (other.last < interval.first || interval.last < other.first) continue;
      if (other.offset > end) {
        const uint64_t gap = other.offset - end;
        if (gap >= interval.bytes && gap < best_gap) {
          best_gap = gap;
          best_offset = end;
        }
      }
      end = std::max(end, other.end);
    }
    effort_ -= static_cast<int64_t>(placed_.size());
    const uint64_t offset = best_offset == UINT64_MAX ? end : best_offset;
    offsets_[index] = offset;
    total = std::max(total, offset + interval.bytes);
    if (total >= limit) return limit;
    const Placed here{offset, offset + interval.bytes, interval.first, interval.last};
    placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), here,
                                    [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
                   here);
  }
  return total;
}

// True when the lower bound is reached.
bool IntervalPacking::keep_if_better(uint64_t total) {
  if (total < total_ || intervals_.empty()) {
    total_ = total;
    best_ = offsets_;
  }
  return total_ <= lower_bound_;
}

// REQUIRES: order_ is an order to start from.
void IntervalPacking::boost_peak() {
  std::vector<uint32_t>& order = order_;
  uint64_t total = place(order, UINT64_MAX, false);
  while (total_ > lower_bound_ && effort_ > 0) {
    const auto peak = std::find_if(order.begin(), order.end(),
                                   [&](uint32_t i) { return offsets_[i] + intervals_[i].bytes == total; });
    if (peak == order.begin()) return;
    std::rotate(order.begin(), peak, peak + 1);
    total = place(order, UINT64_MAX, false);
    keep_if_better(total);
  }
}

uint64_t IntervalPacking::lowest_offset(uint32_t index) const {
  const Interval& interval = intervals_[index];
  uint64_t end = 0;
  for (const Placed& other : placed_) {
    if (other.last < interval.first || interval.last < other.first) continue;
    if (other.offset >= end + interval.bytes) break;
    end = std::max(end, other.end);
  }
  return end;
}

// Some order, with each value at its lowest place, gives the smallest arena.
void IntervalPacking::search_all_orders() {
  std::iota(order_.begin(), order_.end(), 0);
  placed_.clear();
  search(0, 0);
}

void IntervalPacking::search(size_t placed, uint64_t total) {
  if (placed == order_.size()) {
    keep_if_better(total);
    return;
  }
  for (size_t i = placed; i < order_.size() && effort_ > 0 && total_ > lower_bound_; ++i) {
    std::swap(order_[placed], order_[i]);
    const uint32_t index = order_[placed];
    const Interval& interval = intervals_[index];
    const uint64_t offset = lowest_offset(index);
    effort_ -= static_cast<int64_t>(placed) + 1;
    const uint64_t grown = std::max(total, offset + interval.bytes);
    if (grown < total_) {
      offsets_[index] = offset;
      const Placed here{offset, offset + interval.bytes, interval.first, interval.last};
      const auto at =
          placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), here,
                                          [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
                         here);
      const auto position = at - placed_.begin();
      search(placed + 1, grown);
      placed_.erase(placed_.begin() + position);
    }
    std::swap(order_[placed], order_[i]);
  }
}

}  // namespace hetero::graph
