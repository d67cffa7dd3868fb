#include "graph/plan/slice_allocator.h"

#include <algorithm>
#include <bit>

namespace hetero::graph {
namespace {

// How many slices of one list are looked at before going on to larger ones.
constexpr int kTries = 8;

}  // namespace

void SliceAllocator::reset(bool with_clocks, uint64_t soft_limit) {
  slices_.clear();
  clocks_.clear();
  unused_.clear();
  heads_.fill(kNone);
  steps_.fill(0);
  powers_ = 0;
  last_ = kNone;
  end_ = 0;
  high_water_ = 0;
  soft_limit_ = soft_limit;
  with_clocks_ = with_clocks;
}

// Classes count units of kAlignment: up to 7 units each size has its own; then the three bits below
// the highest one decide.
int SliceAllocator::class_of(uint64_t size) {
  const uint64_t units = size / kAlignment;
  if (units < kSteps) return static_cast<int>(units);
  const int power = std::bit_width(units) - 1;
  return (power - 2) * kSteps + static_cast<int>((units >> (power - 3)) & (kSteps - 1));
}

uint32_t SliceAllocator::allocate(uint64_t bytes, const Clock* known, Clock* required) {
  const uint64_t size = round_up(bytes);
  if (soft_limit_ != UINT64_MAX) return allocate_bounded(size, *known, *required);
  const uint32_t slice = find(size, with_clocks_ ? known : nullptr);
  return slice != kNone ? take(slice, size) : grow(size, known);
}

// Free slices next to each other whose users are done first; of those the tightest.
uint32_t SliceAllocator::allocate_bounded(uint64_t size, const Clock& known, Clock& required) {
  uint32_t best = kNone;
  uint32_t best_wait = UINT32_MAX;
  uint64_t best_size = UINT64_MAX;
  for (uint32_t first = last_; first != kNone; first = slices_[first].before) {
    uint64_t found = 0;
    uint32_t wait = 0;
    for (uint32_t s = first; s != kNone && slices_[s].is_free && found < size; s = slices_[s].after) {
      found += slices_[s].size;
      for (int q = 0; q < kMaxQueues; ++q) {
        if (clocks_[s][q] > known[q]) wait = std::max(wait, clocks_[s][q]);
      }
    }
    if (found < size || wait > best_wait || (wait == best_wait && found >= best_size)) continue;
    best = first;
    best_wait = wait;
    best_size = found;
  }
  const bool can_grow = end_ + size <= soft_limit_;
  if (best == kNone || (best_wait != 0 && can_grow)) return grow(size, &known);
  unlink(best);
  while (slices_[best].size < size) {
    unlink(slices_[best].after);
    absorb_next(best);
  }
  if (best_wait != 0) merge(required, clocks_[best]);
  link(best);
  return take(best, size);
}

uint32_t SliceAllocator::find(uint64_t size, const Clock* known) const {
  const int first = class_of(size);
  // Slices of the same class may fit or not; those of larger classes always fit.
  if (const uint32_t slice = find_in_class(first, size, known); slice != kNone) return slice;
  int power = first / kSteps;
  unsigned steps = steps_[power] & (0xFEu << (first % kSteps));
  while (true) {
    for (; steps != 0; steps &= steps - 1) {
      const int size_class = power * kSteps + std::countr_zero(steps);
      const uint32_t slice = find_in_class(size_class, size, known);
      if (slice != kNone) return slice;
    }
    const uint64_t larger = powers_ & (~uint64_t{1} << power);
    if (larger == 0) return kNone;
    power = std::countr_zero(larger);
    steps = steps_[power];
  }
}

uint32_t SliceAllocator::find_in_class(int size_class, uint64_t size, const Clock* known) const {
  uint32_t slice = heads_[size_class];
  for (int tries = 0; slice != kNone && tries < kTries; ++tries, slice = slices_[slice].next) {
    if (slices_[slice].size < size) continue;
    if (known == nullptr || covers(*known, clocks_[slice])) return slice;
  }
  return kNone;
}

uint32_t SliceAllocator::take(uint32_t slice, uint64_t size) {
  unlink(slice);
  slices_[slice].is_free = false;
  if (const uint64_t rest = slices_[slice].size - size; rest > 0) {
    slices_[slice].size = size;
    const uint32_t after = slices_[slice].after;
    const uint32_t remainder = new_slice({.offset = slices_[slice].offset + size,
                                          .size = rest,
                                          .before = slice,
                                          .after = after,
                                          .previous = kNone,
                                          .next = kNone,
                                          .is_free = true});
    if (with_clocks_) clocks_[remainder] = clocks_[slice];
    slices_[slice].after = remainder;
    (after == kNone ? last_ : slices_[after].before) = remainder;
    link(remainder);
  }
  return slice;
}

// Extends the free slice at the end of the arena, or adds one.
uint32_t SliceAllocator::grow(uint64_t size, const Clock* known) {
  uint32_t slice = last_;
  if (slice != kNone && slices_[slice].is_free && (!with_clocks_ || covers(*known, clocks_[slice]))) {
    unlink(slice);
    slices_[slice].is_free = false;
    slices_[slice].size = size;
  } else {
    slice = new_slice({.offset = end_,
                       .size = size,
                       .before = last_,
                       .after = kNone,
                       .previous = kNone,
                       .next = kNone,
                       .is_free = false});
    if (last_ != kNone) slices_[last_].after = slice;
    last_ = slice;
  }
  end_ = slices_[slice].offset + size;
  high_water_ = std::max(high_water_, end_);
  return slice;
}

void SliceAllocator::free(uint32_t slice, const Clock* users) {
  slices_[slice].is_free = true;
  if (with_clocks_) clocks_[slice] = *users;
  if (soft_limit_ != UINT64_MAX) return link(slice);
  if (const uint32_t after = slices_[slice].after; after != kNone && slices_[after].is_free) {
    unlink(after);
    absorb_next(slice);
  }
  if (const uint32_t before = slices_[slice].before; before != kNone && slices_[before].is_free) {
    unlink(before);
    absorb_next(before);
    slice = before;
  }
  link(slice);
}

void SliceAllocator::absorb_next(uint32_t slice) {
  const uint32_t after = slices_[slice].after;
  slices_[slice].size += slices_[after].size;
  slices_[slice].after = slices_[after].after;
  (slices_[after].after == kNone ? last_ : slices_[slices_[after].after].before) = slice;
  if (with_clocks_) merge(clocks_[slice], clocks_[after]);
  recycle(after);
}

uint32_t SliceAllocator::new_slice(const Slice& slice) {
  if (!unused_.empty()) {
    const uint32_t id = unused_.back();
    unused_.pop_back();
    slices_[id] = slice;
    return id;
  }
  slices_.push_back(slice);
  if (with_clocks_) clocks_.emplace_back();
  return static_cast<uint32_t>(slices_.size() - 1);
}

void SliceAllocator::recycle(uint32_t slice) {
  unused_.push_back(slice);
  if (with_clocks_) clocks_[slice] = {};
}

void SliceAllocator::link(uint32_t slice) {
  const int size_class = class_of(slices_[slice].size);
  uint32_t& head = heads_[size_class];
  slices_[slice].previous = kNone;
  slices_[slice].next = head;
  if (head != kNone) slices_[head].previous = slice;
  head = slice;
  steps_[size_class / kSteps] |= 1u << (size_class % kSteps);
  powers_ |= uint64_t{1} << (size_class / kSteps);
}

void SliceAllocator::unlink(uint32_t slice) {
  const Slice& s = slices_[slice];
  if (s.next != kNone) slices_[s.next].previous = s.previous;
  if (s.previous != kNone) {
    slices_[s.previous].next = s.next;
    return;
  }
  const int size_class = class_of(s.size);
  heads_[size_class] = s.next;
  if (s.next != kNone) return;
  const int power = size_class / kSteps;
  steps_[power] &= ~(1u << (size_class % kSteps));
  if (steps_[power] == 0) powers_ &= ~(uint64_t{1} << power);
}

}  // namespace hetero::graph
