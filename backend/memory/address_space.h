// The address space of storages: unique addresses that fault on every access.
//
// A hetero tensor's data pointer is an identity, not a place. Each storage reserves as many
// addresses as it has bytes. So pointer arithmetic on views stays within the storage, and two live
// storages never overlap. Nothing is mapped there: one large range is reserved once, inaccessible,
// and a host access faults at once instead of reading garbage. `install_fault_handler` makes that
// fault say what happened and what to do.
//
//   void* identity = address_space::reserve(bytes);
//   ...
//   address_space::release(identity, bytes);
//
// Main invariant: addresses that are handed out and not yet released never overlap. Released
// addresses are handed out again, the thread's latest first.
//
// Thread safety: any thread, also after static destructors have run, and in a forked child. Up to 1
// MiB, reserve and release use a cache per thread and take about 10 ns together.

#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "backend/base/size_classes.h"
#include "backend/base/thread_block.h"

namespace hetero::backend::address_space {

// Part of the implementation of `contains`; written once, by the first reserve.
inline std::atomic<uintptr_t> range_begin{0};
inline std::atomic<size_t> range_bytes{0};

// Whether `address` is in the reserved range, owned by a storage or not.
inline bool contains(const void* address) {
  const size_t bytes = range_bytes.load(std::memory_order_acquire);
  const uintptr_t begin = range_begin.load(std::memory_order_relaxed);
  return reinterpret_cast<uintptr_t>(address) - begin < bytes;
}

// Released addresses that a thread keeps, so that reserve and release of common sizes need no lock.
struct ThreadCache {
  static constexpr size_t kMostBytes = size_t{1} << 20;
  static constexpr int kClasses = size_class(kMostBytes) + 1;
  static constexpr int kCapacity = 16;
  struct Stack {
    int count = 0;
    uintptr_t addresses[kCapacity];
  };
  Stack stacks[kClasses];
};

void* reserve_slow(size_t bytes);
void release_slow(void* address, size_t bytes);

// A unique address range of `bytes` bytes, aligned to 64. Null only if the whole range (terabytes)
// is taken or could not be reserved. Zero bytes get a unique address too.
inline void* reserve(size_t bytes) {
  ThreadCache* const cache = thread_block().addresses;
  if (cache == nullptr || bytes > ThreadCache::kMostBytes) [[unlikely]] {
    return reserve_slow(bytes);
  }
  ThreadCache::Stack& stack = cache->stacks[size_class(bytes)];
  if (stack.count == 0) [[unlikely]] {
    return reserve_slow(bytes);
  }
  return reinterpret_cast<void*>(stack.addresses[--stack.count]);
}

// Releases an address. REQUIRES: `address` came from reserve(bytes) with the same `bytes`.
inline void release(void* address, size_t bytes) {
  assert(contains(address));
  ThreadCache* const cache = thread_block().addresses;
  if (cache == nullptr || bytes > ThreadCache::kMostBytes) [[unlikely]] {
    return release_slow(address, bytes);
  }
  ThreadCache::Stack& stack = cache->stacks[size_class(bytes)];
  if (stack.count == ThreadCache::kCapacity) [[unlikely]] {
    return release_slow(address, bytes);
  }
  stack.addresses[stack.count++] = reinterpret_cast<uintptr_t>(address);
}

// Describes the storage that owns `address`: writes at most `capacity` characters to `buffer` and
// returns their number. It is called inside a signal handler, so it must be async-signal-safe: no
// lock, no allocation, no stdio.
using Describe = size_t (*)(const void* address, char* buffer, size_t capacity);

// Installs a handler for SIGSEGV and SIGBUS. A fault in the reserved range or in a guarded range
// writes one message to stderr. Every fault then goes on to the previous handler, or to the default
// action. `describe` may be null. Later calls only replace `describe`.
void install_fault_handler(Describe describe);

// Explains faults in [begin, begin + bytes) too, for devices whose memory the host must not touch.
// False if too many ranges are guarded: faults there stay unexplained, and nothing else changes.
bool guard_range(const void* begin, size_t bytes);
void unguard_range(const void* begin);

}  // namespace hetero::backend::address_space
