// CachingAllocator: keeps freed blocks and hands them out again, because fresh memory is expensive.
//
// A device allocates through it from a MemorySource (host memory here; cudaMalloc in cuda/).
// Requests are rounded to size classes (size_classes.h); a freed block goes on its class's list and
// the next request of the class takes the latest one, which is the warmest in the caches and has
// its pages. Every figure is kept in one MemoryStats.
//
//   CachingAllocator allocator(host_memory(), "cpu");
//   Result<Block> block = allocator.allocate(1000);   // freed when the Block dies
//
// Main invariants:
//   allocated_bytes = the sum of the live blocks' sizes, each rounded up to 64 bytes
//                  <= the limit, where there is one
//   reserved_bytes  = live + cached blocks, in class sizes, which is what the source is owed
//   reserved_bytes <= max(live, 3/2 of the high-water mark of live) + 64 MiB, in class sizes; past that
//                     the blocks freed longest ago go back to the source, large ones before small ones
//
// So a program that uses the same memory step after step asks the source for none of it again, also
// where its classes are not used all at once. The mark is that of the latest two turns; a turn is
// over when kTurn times the mark has been handed out. What one unusual step needed goes back when
// the program has gone on for a while.
//
// Thread safety: any thread, also in a forked child. The source is called without the lock held.
// Ownership: the allocator must outlive its Blocks; devices leak theirs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/device/device.h"
#include "backend/base/size_classes.h"
#include "backend/base/spin_lock.h"

namespace hetero::backend {

// Where an allocator's memory comes from. `acquire` returns null when there is none. Called from
// any thread.
struct MemorySource {
  void* (*acquire)(void* context, size_t bytes);
  void (*release)(void* context, void* data, size_t bytes);
  void* context = nullptr;
  bool host_accessible = false;  // cached blocks are poisoned under AddressSanitizer
};

// Ordinary memory. Blocks of 1 MiB and more are mapped one by one, page-aligned, and returned to
// the system at once when released. Huge pages are left to the system's setting: advised, they made
// first touches five times as slow on a virtual machine, and nothing faster (docs/performance.md).
MemorySource host_memory();

class CachingAllocator {
 public:
  CachingAllocator(MemorySource source, std::string device) : source_(source), device_(std::move(device)) {}
  ~CachingAllocator() { empty_cache(); }
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // A block of `bytes` bytes, aligned as the source aligns, 64 at least. When the source has no
  // memory, the cache is released and the source asked once more. Errors: kResource, over the limit
  // or no memory, with figures.
  Result<Block> allocate(size_t bytes);

  // Counts memory that live Blocks hold but that others allocated (negative: released). More than
  // the cap is refused.
  Status account_external(int64_t bytes);

  // Caps allocated_bytes; 0 removes the cap. Live blocks stay, even above a new cap.
  void set_memory_limit(size_t bytes);
  void empty_cache();
  MemoryStats stats() const;
  void reset_peak();

 private:
  struct CachedBlock {
    void* data;
    uint64_t freed_at;  // a count of frees, for "least recently"
  };
  struct SystemBlock {
    void* data;
    size_t bytes;
  };

  static constexpr int64_t kTurn = 32;

  static void release_block(void* self, void* data, size_t bytes);
  void free(void* data, size_t bytes);
  void release_excess();
  // REQUIRES, for these three: lock_ is held.
  void count_allocation();
  void raise_mark(int64_t handed_out);
  bool over_bound() const;
  SystemBlock pop_least_recent();

  MemorySource source_;
  std::string device_;  // named in messages
  mutable ForkSafeSpinLock lock_;
  // Everything below is guarded by lock_.
  MemoryStats stats_;
  int64_t cached_bytes_ = 0;
  int64_t acquiring_bytes_ = 0;  // reserved, and asked of the source right now
  int64_t mark_bytes_ = 0;       // the most bytes live at once in this turn or the last one, in class sizes
  int64_t turn_mark_bytes_ = 0;  // in this one
  int64_t turn_bytes_ = 0;       // handed out in it
  uint64_t frees_ = 0;
  std::vector<CachedBlock> cached_[kSizeClasses];  // each in the order of freeing
};

// "1.50 GiB", for messages.
std::string format_bytes(uint64_t bytes);

// The error every device gives when memory runs out: "hetero out of memory: tried to allocate 2.00
// GiB; 1.50 GiB already allocated, limit 3.00 GiB". A limit of 0 is "none". `device` names the
// device.
Status out_of_memory_error(const std::string& device, uint64_t requested, const MemoryStats& stats);

}  // namespace hetero::backend
