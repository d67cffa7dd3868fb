// FreeList: the fastest memory for small objects of one size.
//
// operator new and delete of tensors, storages and similar handles come here. Each thread pushes
// and pops free objects on a short list without synchronization (1 to 2 ns). If the list runs empty
// or full, a batch moves from or to a list that all threads share, in constant time. New memory is
// carved from slabs that are never returned. So an object may be freed on any thread and at any
// time. After a thread's thread_local objects are gone, it bypasses the thread's list.
//
//   class Handle {
//    public:
//     static void* operator new(size_t) { return FreeList<sizeof(Handle)>::allocate(); }
//     static void operator delete(void* p) { FreeList<sizeof(Handle)>::deallocate(p); }
//   };
//
// Memory is aligned to 16 bytes, and to 64 if Size is a multiple of 64. It is bounded by the most
// objects that were ever alive, plus kPoolBatch * 2 per thread. AddressSanitizer finds use after
// free, because all but the first bytes of a free object are poisoned.
//
// Thread safety: any thread, also in a forked child. allocate throws std::bad_alloc where operator
// new would.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/base/spin_lock.h"
#include "backend/base/thread_block.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace hetero::backend {

inline constexpr uint32_t kPoolBatch = 32;

namespace pool_detail {

// The content of a free object. Only the first object of a shared batch uses `next_batch` and
// `count`.
struct FreeObject {
  FreeObject* next;
  FreeObject* next_batch;
  size_t count;
};

// Free objects of one size that belong to no thread.
struct SharedList {
  size_t object_bytes;
  FreeObject* batches = nullptr;
  void* slabs = nullptr;  // every slab's first word points to the slab before
};

void* allocate_slow(ThreadList& list, SharedList& shared);
void deallocate_slow(ThreadList& list, SharedList& shared, void* object);

#if defined(__SANITIZE_ADDRESS__)
inline void poison(void* object, size_t bytes) {
  __asan_poison_memory_region(static_cast<char*>(object) + sizeof(FreeObject), bytes - sizeof(FreeObject));
}
inline void unpoison(void* object, size_t bytes) { __asan_unpoison_memory_region(object, bytes); }
#else
inline void poison(void*, size_t) {}
inline void unpoison(void*, size_t) {}
#endif

}  // namespace pool_detail

template <size_t Size>
struct FreeList {
  // An object holds a FreeObject while it is free, and keeps its neighbours' alignment.
  static constexpr size_t kObjectBytes = Size <= 32 ? 32 : (Size + 15) / 16 * 16;

  static void* allocate() {
    pool_detail::ThreadList& list = thread_block().lists[kIndex];
    pool_detail::FreeObject* object = list.head;
    if (object == nullptr) [[unlikely]] {
      return pool_detail::allocate_slow(list, shared_list_);
    }
    list.head = object->next;
    --list.count;
    pool_detail::unpoison(object, kObjectBytes);
    return object;
  }

  // REQUIRES: `object` came from allocate of the same Size; null is ignored.
  static void deallocate(void* object) {
    if (object == nullptr) return;
    pool_detail::ThreadList& list = thread_block().lists[kIndex];
    if (list.count >= list.capacity) [[unlikely]] {
      pool_detail::deallocate_slow(list, shared_list_, object);
      return;
    }
    auto* freed = static_cast<pool_detail::FreeObject*>(object);
    freed->next = list.head;
    list.head = freed;
    ++list.count;
    pool_detail::poison(object, kObjectBytes);
  }

 private:
  static constexpr size_t kIndex = kObjectBytes / 16 - 1;
  static_assert(kIndex < ThreadBlock::kSizes);
  static inline constinit pool_detail::SharedList shared_list_{kObjectBytes};
};

// An allocator for containers and shared_ptr: their nodes come from free lists, one object at a
// time.
template <typename Object>
struct PoolAllocator {
  using value_type = Object;
  PoolAllocator() = default;
  template <typename Other>
  PoolAllocator(const PoolAllocator<Other>&) {}
  Object* allocate(size_t) { return static_cast<Object*>(FreeList<sizeof(Object)>::allocate()); }
  void deallocate(Object* object, size_t) { FreeList<sizeof(Object)>::deallocate(object); }
  template <typename Other>
  bool operator==(const PoolAllocator<Other>&) const {
    return true;
  }
};

}  // namespace hetero::backend
