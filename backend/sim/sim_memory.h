// SimMemory: the memory of a SimDevice, which the host cannot touch.
//
// One memfd is mapped twice. Blocks have their addresses in the host mapping, which is
// inaccessible. The device's threads work in the private mapping, which kernel_address reaches. A
// Block is between two guard bands:
//
//   | guard, 64 bytes | the Block's bytes | slack up to 64, and guard, 64 bytes |
//
// Guards are filled with 0xFB and checked when the Block is released, which finds a write of one
// byte too many. A Block's bytes are 0xCD when it is handed out and after its release. Blocks above
// 64 MiB return their pages instead and then read as zero, so a simulated GPU of many gigabytes
// fits a laptop.
//
// The smallest free range that fits is taken, which reuses touched pages before fresh ones. The
// mapping is twice the capacity, so fragmentation refuses what the capacity allows in contrived
// cases only.
//
// Thread safety: any thread. In a forked child release() does nothing, because the parent shares
// the pages.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/base/spin_lock.h"
#include "backend/device/device.h"
#include "backend/memory/range_allocator.h"

namespace hetero::backend {

class SimMemory {
 public:
  static constexpr unsigned char kPoison = 0xCD;
  static constexpr unsigned char kGuard = 0xFB;
  static constexpr size_t kGuardBytes = 64;

  // Errors: kDevice if the system grants no memory to map.
  static Result<std::unique_ptr<SimMemory>> create(size_t capacity_bytes);
  ~SimMemory();
  SimMemory(const SimMemory&) = delete;
  SimMemory& operator=(const SimMemory&) = delete;

  // Errors: kResource with figures, over the capacity or the limit.
  Result<Block> allocate(size_t bytes);

  bool contains(const void* data) const {
    return reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(host_) < mapped_bytes_;
  }
  // The same byte in the private mapping; an address outside this memory comes back unchanged.
  void* kernel_address(void* data) const {
    return contains(data) ? private_ + (static_cast<char*>(data) - host_) : data;
  }

  void empty_cache();
  void set_limit(size_t bytes);
  MemoryStats stats() const;
  void reset_peak();
  int64_t guard_violations() const { return guard_violations_.load(std::memory_order_relaxed); }

 private:
  SimMemory(int file, char* host, char* private_mapping, size_t mapped_bytes, size_t capacity);

  static void release_block(void* self, void* data, size_t bytes);
  void release(void* data, size_t bytes);
  // These take a range's offset, that is, its first guard's, and the Block's bytes.
  void prepare(size_t offset, size_t bytes);
  bool guards_intact(size_t offset, size_t bytes) const;
  // These take any range.
  void fill_with_poison(size_t offset, size_t bytes);
  // The system takes the pages back; they read as zero.
  void discard_pages(size_t offset, size_t bytes);

  const int file_;
  char* const host_;
  char* const private_;
  const size_t mapped_bytes_;
  const size_t capacity_;
  const int fork_generation_;
  std::atomic<int64_t> guard_violations_{0};

  mutable ForkSafeSpinLock lock_;
  // Guarded by lock_.
  MemoryStats stats_;
  size_t touched_end_ = 0;  // ranges below were in use before
  RangeAllocator free_;
};

}  // namespace hetero::backend
