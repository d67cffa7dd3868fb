#include "backend/memory/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "backend/memory/host_ranges.h"
#include "backend/memory/memory_observer.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace hetero::backend {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kMappedBytes = size_t{1} << 20;  // from here on a block is a mapping of its own
constexpr int64_t kAlwaysCachedBytes = int64_t{64} << 20;

size_t round_to_pages(size_t bytes) { return (bytes + kPageBytes - 1) & ~(kPageBytes - 1); }

void* map(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

Result<void*> acquire_host(void*, size_t bytes) {
  const bool mapped = bytes >= kMappedBytes;
  void* const data = mapped ? map(round_to_pages(bytes)) : std::aligned_alloc(kAlignment, bytes);
  if (data == nullptr) return Status(ErrorClass::kResource, "the system has no memory");
  if (mapped) host_ranges().add(data, bytes);
  return data;
}

void release_host(void*, void* data, size_t bytes) {
  if (bytes < kMappedBytes) {
    std::free(data);
  } else {
    host_ranges().remove(data, bytes);
    munmap(data, round_to_pages(bytes));
  }
}

// Cached memory has no owner; AddressSanitizer reports any access.
void poison([[maybe_unused]] const MemorySource& source, [[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  if (source.host_accessible) __asan_poison_memory_region(data, bytes);
#endif
}

void unpoison([[maybe_unused]] const MemorySource& source, [[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  if (source.host_accessible) __asan_unpoison_memory_region(data, bytes);
#endif
}

void give_back(const MemorySource& source, void* data, size_t bytes) {
  unpoison(source, data, bytes);
  source.release(source.context, data, bytes);
}

}  // namespace

MemorySource host_memory() { return {acquire_host, release_host, nullptr, true}; }

std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024; value /= 1024) ++unit;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

Status out_of_memory_error(const std::string& device, uint64_t requested, const MemoryStats& stats) {
  const std::string limit = stats.limit_bytes == 0 ? "none" : format_bytes(stats.limit_bytes);
  return Status(ErrorClass::kResource, "hetero out of memory. Tried to allocate " + format_bytes(requested) + "; " +
                                           format_bytes(stats.allocated_bytes) + " already allocated, limit " + limit +
                                           " (device " + device + ", peak " + format_bytes(stats.peak_bytes) +
                                           ", reserved " + format_bytes(stats.reserved_bytes) + ")");
}

Result<Block> CachingAllocator::allocate(size_t bytes) {
  if (bytes > kLargestClassBytes) return out_of_memory_error(device_, bytes, stats());
  const int index = size_class(bytes);
  const auto rounded = static_cast<int64_t>(round_to_alignment(bytes));
  const size_t held_bytes = class_bytes(index);
  const auto held = static_cast<int64_t>(held_bytes);
  void* data = nullptr;
  {
    std::lock_guard guard(lock_);
    if (stats_.limit_bytes != 0 && stats_.allocated_bytes + rounded > stats_.limit_bytes) {
      return out_of_memory_error(device_, bytes, stats_);
    }
    // Counted before the memory exists, so that concurrent allocations cannot pass the limit
    // together.
    stats_.allocated_bytes += rounded;
    if (!cached_[index].empty()) {
      data = cached_[index].back().data;
      cached_[index].pop_back();
      cached_bytes_ -= held;
      ++stats_.reused_blocks;
      stats_.reused_bytes += rounded;
    } else {
      stats_.reserved_bytes += held;
      acquiring_bytes_ += held;
    }
    if (data != nullptr) {
      count_allocation();
      raise_mark(held);
    }
  }
  if (data != nullptr) {
    unpoison(source_, data, held_bytes);
    observe_memory(data, rounded);
    return Block::adopt(data, bytes, release_block, this);
  }

  const auto is_exhausted = [](const Result<void*>& result) {
    return !result.ok() && result.status().error_class() == ErrorClass::kResource;
  };
  Result<void*> acquired = source_.acquire(source_.context, held_bytes);
  if (is_exhausted(acquired)) {
    empty_cache();
    acquired = source_.acquire(source_.context, held_bytes);
  }
  {
    std::lock_guard guard(lock_);
    acquiring_bytes_ -= held;
    if (!acquired.ok()) {
      stats_.allocated_bytes -= rounded;
      stats_.reserved_bytes -= held;
      return is_exhausted(acquired) ? out_of_memory_error(device_, bytes, stats_) : acquired.status();
    }
    count_allocation();
    raise_mark(held);
  }
  data = acquired.value();
  observe_memory(data, rounded);
  return Block::adopt(data, bytes, release_block, this);
}

void CachingAllocator::count_allocation() {
  ++stats_.allocations;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.allocated_bytes);
}

void CachingAllocator::raise_mark(int64_t handed_out) {
  const int64_t live = stats_.reserved_bytes - cached_bytes_ - acquiring_bytes_;
  turn_mark_bytes_ = std::max(turn_mark_bytes_, live);
  mark_bytes_ = std::max(mark_bytes_, live);
  turn_bytes_ += handed_out;
  if (turn_bytes_ < kTurn * std::max(mark_bytes_, kAlwaysCachedBytes)) return;
  mark_bytes_ = turn_mark_bytes_;
  turn_mark_bytes_ = live;
  turn_bytes_ = 0;
}

void CachingAllocator::release_block(void* self, void* data, size_t bytes) {
  static_cast<CachingAllocator*>(self)->free(data, bytes);
}

void CachingAllocator::free(void* data, size_t bytes) {
  const int index = size_class(bytes);
  poison(source_, data, class_bytes(index));
  const auto rounded = static_cast<int64_t>(round_to_alignment(bytes));
  observe_memory(data, -rounded);
  bool excess = false;
  {
    std::lock_guard guard(lock_);
    stats_.allocated_bytes -= rounded;
    cached_[index].push_back({data, frees_++});
    cached_bytes_ += static_cast<int64_t>(class_bytes(index));
    excess = over_bound();
  }
  if (excess) release_excess();
}

bool CachingAllocator::over_bound() const {
  return cached_bytes_ > kAlwaysCachedBytes &&
         stats_.reserved_bytes > mark_bytes_ + mark_bytes_ / 2 + kAlwaysCachedBytes;
}

CachingAllocator::SystemBlock CachingAllocator::pop_least_recent() {
  const int first_large = size_class(kMappedBytes);
  int oldest = -1;
  const auto look_at = [&](int begin, int end) {
    for (int index = begin; index < end; ++index) {
      if (cached_[index].empty()) continue;
      if (oldest < 0 || cached_[index].front().freed_at < cached_[oldest].front().freed_at) {
        oldest = index;
      }
    }
  };
  look_at(first_large, kSizeClasses);
  if (oldest < 0) look_at(0, first_large);
  if (oldest < 0) return {nullptr, 0};
  const SystemBlock block{cached_[oldest].front().data, class_bytes(oldest)};
  cached_[oldest].erase(cached_[oldest].begin());
  cached_bytes_ -= static_cast<int64_t>(block.bytes);
  stats_.reserved_bytes -= static_cast<int64_t>(block.bytes);
  return block;
}

void CachingAllocator::release_excess() {
  while (true) {
    SystemBlock block{nullptr, 0};
    {
      std::lock_guard guard(lock_);
      if (over_bound()) block = pop_least_recent();
    }
    if (block.data == nullptr) return;
    give_back(source_, block.data, block.bytes);
  }
}

void CachingAllocator::empty_cache() {
  for (int index = 0; index < kSizeClasses; ++index) {
    std::vector<CachedBlock> blocks;
    const size_t bytes = class_bytes(index);
    {
      std::lock_guard guard(lock_);
      blocks.swap(cached_[index]);
      cached_bytes_ -= static_cast<int64_t>(blocks.size() * bytes);
      stats_.reserved_bytes -= static_cast<int64_t>(blocks.size() * bytes);
    }
    for (const CachedBlock& block : blocks) give_back(source_, block.data, bytes);
  }
}

Status CachingAllocator::account_external(int64_t bytes) {
  {
    std::lock_guard lock(lock_);
    if (bytes > 0 && stats_.limit_bytes != 0 && stats_.allocated_bytes + bytes > stats_.limit_bytes) {
      return out_of_memory_error(device_, static_cast<uint64_t>(bytes), stats_);
    }
    external_bytes_ += bytes;
    stats_.allocated_bytes += bytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.allocated_bytes);
  }
  observe_memory(nullptr, bytes);
  return {};
}

void CachingAllocator::set_memory_limit(size_t bytes) {
  std::lock_guard guard(lock_);
  stats_.limit_bytes = static_cast<int64_t>(bytes);
}

MemoryStats CachingAllocator::stats() const {
  std::lock_guard guard(lock_);
  MemoryStats stats = stats_;
  stats.reserved_bytes += external_bytes_;
  return stats;
}

void CachingAllocator::reset_peak() {
  std::lock_guard guard(lock_);
  stats_.peak_bytes = stats_.allocated_bytes;
}

}  // namespace hetero::backend
