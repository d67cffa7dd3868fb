#include "backend/memory/pool.h"

#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace hetero::backend::pool_detail {
namespace {

// One lock for the shared lists of all sizes: they are visited once per kPoolBatch operations.
// Leaked, as the lists are.
SpinLock& shared_lock() {
  static SpinLock& leaked = *new ForkSafeSpinLock;
  return leaked;
}

void push_batch(SharedList& shared, FreeObject* head, size_t count) {
  head->count = count;
  std::lock_guard guard(shared_lock());
  head->next_batch = shared.batches;
  shared.batches = head;
}

FreeObject* pop_batch(SharedList& shared) {
  std::lock_guard guard(shared_lock());
  FreeObject* head = shared.batches;
  if (head != nullptr) shared.batches = head->next_batch;
  return head;
}

// A new slab holds one batch. Its first 64 bytes link it to the other slabs, so that leak checkers
// see it.
FreeObject* carve_batch(SharedList& shared) {
  constexpr size_t kHeader = 64;
  const size_t bytes = kHeader + kPoolBatch * shared.object_bytes;
  auto* slab = static_cast<char*>(::operator new (bytes, std::align_val_t{kHeader}));
  FreeObject* head = nullptr;
  for (uint32_t i = kPoolBatch; i-- > 0;) {
    auto* object = reinterpret_cast<FreeObject*>(slab + kHeader + i * shared.object_bytes);
    object->next = head;
    poison(object, shared.object_bytes);
    head = object;
  }
  head->count = kPoolBatch;
  std::lock_guard guard(shared_lock());
  *reinterpret_cast<void**>(slab) = shared.slabs;
  shared.slabs = slab;
  return head;
}

// Trivial, and so still readable after ThreadLists below was destroyed.
constinit thread_local bool thread_is_ending = false;

// The lists that this thread has used; its destructor gives their objects to the other threads.
class ThreadLists {
 public:
  ~ThreadLists() {
    thread_is_ending = true;
    for (auto [list, shared] : lists_) {
      if (list->head != nullptr) push_batch(*shared, list->head, list->count);
      *list = ThreadList{};
    }
  }
  void open(ThreadList& list, SharedList& shared) {
    lists_.emplace_back(&list, &shared);
    list.capacity = 2 * kPoolBatch;
  }

 private:
  std::vector<std::pair<ThreadList*, SharedList*>> lists_;
};

// Returns false if the thread is ending and must not keep objects.
bool open_list(ThreadList& list, SharedList& shared) {
  if (list.capacity != 0) return true;
  if (thread_is_ending) return false;
  static thread_local ThreadLists lists;
  lists.open(list, shared);
  return true;
}

}  // namespace

void* allocate_slow(ThreadList& list, SharedList& shared) {
  FreeObject* head = pop_batch(shared);
  if (head == nullptr) head = carve_batch(shared);
  FreeObject* rest = head->next;
  const size_t rest_count = head->count - 1;
  if (rest != nullptr) {
    if (open_list(list, shared)) {
      list.head = rest;
      list.count = static_cast<uint32_t>(rest_count);
    } else {
      push_batch(shared, rest, rest_count);
    }
  }
  unpoison(head, shared.object_bytes);
  return head;
}

void deallocate_slow(ThreadList& list, SharedList& shared, void* object) {
  auto* freed = static_cast<FreeObject*>(object);
  freed->next = nullptr;
  poison(object, shared.object_bytes);
  if (!open_list(list, shared)) {
    push_batch(shared, freed, 1);
    return;
  }
  if (list.count >= list.capacity) {
    // The latest half stays, because it is warm in the cache.
    FreeObject* last_kept = list.head;
    for (uint32_t i = 1; i < kPoolBatch; ++i) last_kept = last_kept->next;
    push_batch(shared, last_kept->next, list.count - kPoolBatch);
    last_kept->next = nullptr;
    list.count = kPoolBatch;
  }
  freed->next = list.head;
  list.head = freed;
  ++list.count;
}

}  // namespace hetero::backend::pool_detail
