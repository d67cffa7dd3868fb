#include "backend/memory/host_ranges.h"

#include <algorithm>

namespace hetero::backend {
namespace {

constexpr int kAskedBeforeLocking = 2;

}  // namespace

void HostRanges::set_locks(Locks locks) {
  const std::lock_guard guard(mutex_);
  locks_ = locks;
}

void HostRanges::add_large(void* data, size_t bytes) {
  const std::lock_guard guard(mutex_);
  Range& range = ranges_[reinterpret_cast<uintptr_t>(data)];
  range.bytes = std::max(range.bytes, bytes);
  ++range.added;
}

void HostRanges::remove_large(void* data) {
  const std::lock_guard guard(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(data));
  if (found == ranges_.end() || --found->second.added > 0) return;
  if (found->second.locked) locks_.unlock(data);
  ranges_.erase(found);
}

bool HostRanges::is_locked(const void* data, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard guard(mutex_);
  auto found = ranges_.upper_bound(address);
  if (locks_.lock == nullptr || found == ranges_.begin()) return false;
  --found;
  Range& range = found->second;
  if (address - found->first + bytes > range.bytes) return false;
  // If locking is refused, the count goes past the limit, so that it is not tried again.
  if (!range.locked && ++range.asked == kAskedBeforeLocking) {
    range.locked = locks_.lock(reinterpret_cast<void*>(found->first), range.bytes);
  }
  return range.locked;
}

int64_t HostRanges::locked() const {
  const std::lock_guard guard(mutex_);
  return std::ranges::count_if(ranges_, [](const auto& range) { return range.second.locked; });
}

HostRanges& host_ranges() {
  static auto& ranges = *new HostRanges;
  return ranges;
}

}  // namespace hetero::backend
