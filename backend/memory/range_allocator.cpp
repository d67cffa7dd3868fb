#include "backend/memory/range_allocator.h"

#include <iterator>

namespace hetero::backend {

std::optional<uint64_t> RangeAllocator::take(uint64_t bytes) {
  const auto smallest = by_bytes_.lower_bound({bytes, 0});
  if (smallest == by_bytes_.end()) return std::nullopt;
  const auto [available, start] = *smallest;
  remove(by_start_.find(start));
  if (available > bytes) add(start + bytes, available - bytes);
  return start;
}

bool RangeAllocator::take_at(uint64_t start, uint64_t bytes) {
  const auto after = by_start_.upper_bound(start);
  if (after == by_start_.begin()) return false;
  const auto range = std::prev(after);
  const uint64_t begin = range->first;
  const uint64_t before = start - begin;
  if (range->second < before || range->second - before < bytes) return false;
  const uint64_t behind = range->second - before - bytes;
  remove(range);
  if (before > 0) add(begin, before);
  if (behind > 0) add(start + bytes, behind);
  return true;
}

void RangeAllocator::give(uint64_t start, uint64_t bytes) {
  const auto next = by_start_.lower_bound(start);
  const auto before = next == by_start_.begin() ? by_start_.end() : std::prev(next);
  if (next != by_start_.end() && next->first == start + bytes) {
    bytes += next->second;
    remove(next);
  }
  if (before != by_start_.end() && before->first + before->second == start) {
    start = before->first;
    bytes += before->second;
    remove(before);
  }
  add(start, bytes);
}

void RangeAllocator::add(uint64_t start, uint64_t bytes) {
  by_start_.emplace(start, bytes);
  by_bytes_.emplace(bytes, start);
}

void RangeAllocator::remove(ByStart::const_iterator range) {
  by_bytes_.erase({range->second, range->first});
  by_start_.erase(range);
}

}  // namespace hetero::backend
