// CachingAllocator: keeps freed blocks and hands them out again, because fresh memory is expensive.
//
// A device allocates through it from a MemorySource: host memory here, cudaMalloc in cuda/.
// Requests are rounded to size classes (size_classes.h). A freed block goes on its class's list.
// The next request of the class takes the latest block, whose pages exist and are warm in the
// caches. One MemoryStats holds every figure.
//
//   CachingAllocator allocator(host_memory(), "cpu");
//   Result<Block> block = allocator.allocate(1000);   // freed when the Block dies
//
// Main invariants:
//   allocated_bytes = the sum of the live blocks' sizes, each rounded up to 64 bytes
//                  <= the limit, if there is one
//   reserved_bytes  = live + cached blocks, in class sizes: the memory taken from the source; for
//                     stats(), and what other allocators own
//   reserved_bytes <= max(live, 3/2 of the high-water mark of live) + 64 MiB, in class sizes; past
//                     that, blocks go back to the source: those freed longest ago first, and large
//                     ones before small ones
//
// So a program that uses the same memory step after step takes none from the source, even if it
// does not use all its classes at once. The mark is that of the latest two turns. A turn ends when
// kTurn times the mark has been handed out. The memory of one unusual step thus goes back after a
// while.
//
// Thread safety: any thread, also in a forked child. The source is called without the lock held.
// Ownership: the allocator must outlive its Blocks; devices leak theirs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/size_classes.h"
#include "backend/base/spin_lock.h"
#include "backend/device/device.h"

namespace hetero::backend {

// An allocator's source of memory. `acquire` fails with kResource, whose words nobody reads, if
// there is none, and with another class if its device failed. Any thread may call it.
struct MemorySource {
  Result<void*> (*acquire)(void* context, size_t bytes);
  void (*release)(void* context, void* data, size_t bytes);
  void* context = nullptr;
  bool host_accessible = false;  // cached blocks are poisoned under AddressSanitizer
};

// Ordinary memory. Blocks of 1 MiB or more are mapped one by one, page-aligned, and returned to the
// system at once when released. The system's setting decides about huge pages. Advising them made
// first touches five times as slow on a virtual machine, and nothing faster (docs/performance.md).
MemorySource host_memory();

class CachingAllocator {
 public:
  CachingAllocator(MemorySource source, std::string device) : source_(source), device_(std::move(device)) {}
  ~CachingAllocator() { empty_cache(); }
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // A block of `bytes` bytes, aligned like the source and at least to 64. If the source has no
  // memory, the cache is released and the source is asked once more. Errors: kResource, with
  // figures, over the limit or without memory; the source's, if its device failed.
  Result<Block> allocate(size_t bytes);

  // Counts memory that live Blocks hold but other allocators own (negative: released). Refuses to
  // exceed the cap.
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
  int64_t external_bytes_ = 0;  // counted by account_external()
  int64_t cached_bytes_ = 0;
  int64_t acquiring_bytes_ = 0;  // reserved, and asked of the source right now
  // The most bytes live at once in this turn or the last one, in class sizes.
  int64_t mark_bytes_ = 0;
  int64_t turn_mark_bytes_ = 0;  // in this one
  int64_t turn_bytes_ = 0;       // handed out in it
  uint64_t frees_ = 0;
  std::vector<CachedBlock> cached_[kSizeClasses];  // each in the order of freeing
};

// "1.50 GiB", for messages.
std::string format_bytes(uint64_t bytes);

// The out-of-memory error of every device: "hetero out of memory. Tried to allocate 2.00 GiB; 1.50
// GiB already allocated, limit 3.00 GiB". A limit of 0 is "none". `device` names the device.
Status out_of_memory_error(const std::string& device, uint64_t requested, const MemoryStats& stats);

}  // namespace hetero::backend
