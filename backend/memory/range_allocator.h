// RangeAllocator: which bytes of something that is addressed from 0 are free: a file, a device's
// memory.
//
// take() gives the smallest free range that is large enough, of equal ones the lowest. So what was
// used before is used again before what never was. take_at() takes a given range. give() joins a
// range with its free neighbours. All take time logarithmic in the number of free ranges.
//
// Ranges have no alignment of their own: a caller that takes multiples of a page gets pages.
//
// Thread safety: none; the owner's lock.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "backend/memory/pool.h"

namespace hetero::backend {

class RangeAllocator {
  using ByStart = std::map<uint64_t, uint64_t, std::less<>, PoolAllocator<std::pair<const uint64_t, uint64_t>>>;
  using Range = std::pair<uint64_t, uint64_t>;

 public:
  // The bytes from 0 to `bytes` are free.
  explicit RangeAllocator(uint64_t bytes) { add(0, bytes); }

  // Where the range begins; none if no free range is large enough. REQUIRES: bytes > 0.
  std::optional<uint64_t> take(uint64_t bytes);
  // Takes this range and no other. False if a byte of it is not free. REQUIRES: bytes > 0.
  bool take_at(uint64_t start, uint64_t bytes);
  // REQUIRES: the range was taken, as a whole or in parts, and no byte of it is free.
  void give(uint64_t start, uint64_t bytes);

  // The free ranges: bytes by start. No two of them touch.
  const ByStart& free() const { return by_start_; }

 private:
  void add(uint64_t start, uint64_t bytes);
  void remove(ByStart::const_iterator range);

  ByStart by_start_;
  std::set<Range, std::less<>, PoolAllocator<Range>> by_bytes_;  // bytes, then start
};

}  // namespace hetero::backend
