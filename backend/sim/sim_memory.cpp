#include "backend/sim/sim_memory.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>

#include "backend/base/size_classes.h"
#include "backend/memory/address_space.h"
#include "backend/memory/allocator.h"
#include "backend/memory/memory_observer.h"

namespace hetero::backend {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kMostPoisonedBytes = size_t{64} << 20;

size_t range_bytes(size_t block_bytes) {
  return SimMemory::kGuardBytes + round_to_alignment(block_bytes) + SimMemory::kGuardBytes;
}

Status system_error(const char* action) {
  return Status(ErrorClass::kDevice, std::string("sim: ") + action + ": " + std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<SimMemory>> SimMemory::create(size_t capacity_bytes) {
  if (capacity_bytes > kLargestClassBytes / 4) {
    return Status(ErrorClass::kUsage,
                  "sim: a capacity of " + format_bytes(capacity_bytes) + " does not fit the address space");
  }
  // The capacity counts neither guards, which are most of a tiny block, nor gaps between blocks.
  const size_t beside = capacity_bytes + std::min(6 * capacity_bytes, size_t{64} << 20);
  const size_t mapped = (capacity_bytes + beside + kPageBytes) / kPageBytes * kPageBytes;
  const int file = memfd_create("hetero-sim", MFD_CLOEXEC);
  if (file < 0) return system_error("memfd_create");
  if (ftruncate(file, static_cast<off_t>(mapped)) != 0) {
    const Status status = system_error("ftruncate");
    close(file);
    return status;
  }
  void* host = mmap(nullptr, mapped, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  void* work = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (host == MAP_FAILED || work == MAP_FAILED) {
    const Status status = system_error("mmap");
    if (host != MAP_FAILED) munmap(host, mapped);
    if (work != MAP_FAILED) munmap(work, mapped);
    close(file);
    return status;
  }
  madvise(host, mapped, MADV_DONTDUMP);
  madvise(work, mapped, MADV_DONTDUMP);
  return std::unique_ptr<SimMemory>(
      new SimMemory(file, static_cast<char*>(host), static_cast<char*>(work), mapped, capacity_bytes));
}

SimMemory::SimMemory(int file, char* host, char* private_mapping, size_t mapped_bytes, size_t capacity)
    : file_(file),
      host_(host),
      private_(private_mapping),
      mapped_bytes_(mapped_bytes),
      capacity_(capacity),
      fork_generation_(fork_generation()),
      free_(mapped_bytes) {
  stats_.limit_bytes = static_cast<int64_t>(capacity);
  address_space::guard_range(host_, mapped_bytes_);
}

SimMemory::~SimMemory() {
  address_space::unguard_range(host_);
  munmap(host_, mapped_bytes_);
  munmap(private_, mapped_bytes_);
  close(file_);
}

Result<Block> SimMemory::allocate(size_t bytes) {
  if (fork_generation() != fork_generation_) {
    return Status(ErrorClass::kDevice, "sim: the device cannot be used in a forked process");
  }
  size_t offset = 0;
  {
    std::lock_guard guard(lock_);
    if (bytes > capacity_) return out_of_memory_error("sim", bytes, stats_);
    const auto rounded = static_cast<int64_t>(round_to_alignment(bytes));
    if (stats_.allocated_bytes + rounded > stats_.limit_bytes) return out_of_memory_error("sim", bytes, stats_);
    const std::optional<uint64_t> taken = free_.take(range_bytes(bytes));
    if (!taken.has_value()) return out_of_memory_error("sim", bytes, stats_);
    offset = *taken;
    const size_t end = offset + range_bytes(bytes);
    if (end <= touched_end_) {
      ++stats_.reused_blocks;
      stats_.reused_bytes += rounded;
    }
    touched_end_ = std::max(touched_end_, end);
    ++stats_.allocations;
    stats_.allocated_bytes += rounded;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.allocated_bytes);
    stats_.reserved_bytes += static_cast<int64_t>(range_bytes(bytes));
  }
  prepare(offset, bytes);
  observe_memory(host_ + offset + kGuardBytes, static_cast<int64_t>(round_to_alignment(bytes)));
  return Block::adopt(host_ + offset + kGuardBytes, bytes, release_block, this);
}

void SimMemory::release_block(void* self, void* data, size_t bytes) {
  static_cast<SimMemory*>(self)->release(data, bytes);
}

void SimMemory::release(void* data, size_t bytes) {
  if (fork_generation() != fork_generation_) return;
  const size_t offset = static_cast<size_t>(static_cast<char*>(data) - host_) - kGuardBytes;
  if (!guards_intact(offset, bytes)) {
    guard_violations_.fetch_add(1, std::memory_order_relaxed);
    std::fprintf(stderr, "hetero: sim: bytes outside the block of %zu bytes at %p were overwritten\n", bytes, data);
  }
  fill_with_poison(offset, range_bytes(bytes));
  observe_memory(data, -static_cast<int64_t>(round_to_alignment(bytes)));
  std::lock_guard guard(lock_);
  stats_.allocated_bytes -= static_cast<int64_t>(round_to_alignment(bytes));
  stats_.reserved_bytes -= static_cast<int64_t>(range_bytes(bytes));
  free_.give(offset, range_bytes(bytes));
}

void SimMemory::prepare(size_t offset, size_t bytes) {
  fill_with_poison(offset, range_bytes(bytes));
  const size_t end = kGuardBytes + bytes;
  std::memset(private_ + offset, kGuard, kGuardBytes);
  std::memset(private_ + offset + end, kGuard, range_bytes(bytes) - end);
}

bool SimMemory::guards_intact(size_t offset, size_t bytes) const {
  const auto is_guard = [](char byte) { return static_cast<unsigned char>(byte) == kGuard; };
  const char* begin = private_ + offset;
  return std::all_of(begin, begin + kGuardBytes, is_guard) &&
         std::all_of(begin + kGuardBytes + bytes, begin + range_bytes(bytes), is_guard);
}

void SimMemory::fill_with_poison(size_t offset, size_t bytes) {
  if (bytes <= kMostPoisonedBytes) {
    std::memset(private_ + offset, kPoison, bytes);
  } else {
    discard_pages(offset, bytes);
  }
}

void SimMemory::discard_pages(size_t offset, size_t bytes) {
  // Only whole pages are discarded, and those at the ends are partly zeroed. A failure costs
  // memory, not correctness.
  static_cast<void>(fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                              static_cast<off_t>(bytes)));
}

void SimMemory::empty_cache() {
  if (fork_generation() != fork_generation_) return;
  std::lock_guard guard(lock_);
  for (const auto& [offset, bytes] : free_.free()) discard_pages(offset, bytes);
}

void SimMemory::set_limit(size_t bytes) {
  std::lock_guard guard(lock_);
  stats_.limit_bytes = static_cast<int64_t>(bytes == 0 ? capacity_ : std::min(bytes, capacity_));
}

MemoryStats SimMemory::stats() const {
  std::lock_guard guard(lock_);
  return stats_;
}

void SimMemory::reset_peak() {
  std::lock_guard guard(lock_);
  stats_.peak_bytes = stats_.allocated_bytes;
}

}  // namespace hetero::backend
