// A function that sees each block come and go, for memory profilers.
//
// Thread safety: any thread; it is called without locks, on the thread that takes or gives back.

#pragma once

#include <atomic>
#include <cstdint>

namespace hetero::backend {

// `data` is null for memory of another allocator that is only counted here. `bytes` is negative for
// what is given back.
using MemoryObserver = void (*)(const void* data, int64_t bytes);

// Null: no one looks.
inline std::atomic<MemoryObserver> memory_observer{nullptr};

inline void observe_memory(const void* data, int64_t bytes) {
  if (const MemoryObserver observer = memory_observer.load(std::memory_order_relaxed); observer != nullptr) [[unlikely]]
    observer(data, bytes);
}

}  // namespace hetero::backend
