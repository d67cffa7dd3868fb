#include "backend/memory/pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/backend/child.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

// Every test uses a size of its own, so that each starts with empty lists.

TEST_CASE("the pool gives the object freed last to the next allocation") {
  using List = FreeList<160>;
  void* object = List::allocate();
  List::deallocate(object);
  REQUIRE(List::allocate() == object);
  List::deallocate(object);
}

TEST_CASE("live pool objects do not overlap and keep their alignment") {
  using List = FreeList<192>;
  std::vector<char*> objects;
  for (int i = 0; i < 1000; ++i) {
    auto* object = static_cast<char*>(List::allocate());
    REQUIRE(reinterpret_cast<uintptr_t>(object) % 64 == 0);
    std::memset(object, i & 0xff, 192);
    objects.push_back(object);
  }
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(std::all_of(objects[i], objects[i] + 192, [i](char byte) { return byte == static_cast<char>(i & 0xff); }));
    List::deallocate(objects[i]);
  }
}

TEST_CASE("the pool's memory is bounded by the most objects ever alive") {
  using List = FreeList<224>;
  std::vector<void*> seen;
  for (int round = 0; round < 20; ++round) {
    std::vector<void*> alive;
    for (int i = 0; i < 500; ++i) alive.push_back(List::allocate());
    seen.insert(seen.end(), alive.begin(), alive.end());
    for (void* object : alive) List::deallocate(object);
  }
  std::sort(seen.begin(), seen.end());
  const auto distinct = std::unique(seen.begin(), seen.end()) - seen.begin();
  REQUIRE(distinct <= 500 + 2 * static_cast<int>(kPoolBatch));
}

TEST_CASE("objects freed on another thread serve that thread and then the others") {
  using List = FreeList<256>;
  std::vector<void*> objects;
  for (int i = 0; i < 200; ++i) objects.push_back(List::allocate());
  std::thread([&] {
    for (void* object : objects) List::deallocate(object);
  }).join();
  std::vector<void*> again;
  for (int i = 0; i < 200; ++i) again.push_back(List::allocate());
  std::sort(objects.begin(), objects.end());
  int reused = 0;
  for (void* object : again) reused += std::binary_search(objects.begin(), objects.end(), object);
  // All but those that this thread's own list still held.
  REQUIRE(reused >= 200 - 2 * static_cast<int>(kPoolBatch));
  for (void* object : again) List::deallocate(object);
}

TEST_CASE("threads that exchange pool objects never hold the same one") {
  using List = FreeList<288>;
  constexpr int kThreads = 4;
  constexpr int kSlots = 64;
  std::vector<std::atomic<void*>> slots(kSlots);
  std::atomic<int> clashes{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      uint32_t random = 12345u + static_cast<uint32_t>(t);
      for (int i = 0; i < 30000; ++i) {
        random = random * 1664525u + 1013904223u;
        auto* object = static_cast<std::atomic<uint64_t>*>(List::allocate());
        new (object) std::atomic<uint64_t>(0);
        if (object->fetch_add(1) != 0) ++clashes;
        void* previous = slots[(random >> 16) % kSlots].exchange(object);
        if (previous == nullptr) continue;
        if (static_cast<std::atomic<uint64_t>*>(previous)->fetch_add(1) != 1) ++clashes;
        List::deallocate(previous);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : slots) List::deallocate(slot.load());
  REQUIRE(clashes == 0);
}

using EndingList = FreeList<320>;

struct FreesAtThreadEnd {
  void* object = nullptr;
  ~FreesAtThreadEnd() {
    EndingList::deallocate(object);
    // The thread's list is gone; the pool still works.
    void* late = EndingList::allocate();
    std::memset(late, 1, 320);
    EndingList::deallocate(late);
  }
};

TEST_CASE("a pool object may be freed after its thread's lists are gone") {
  void* object = nullptr;
  std::thread([&] {
    // Constructed before the pool's own thread_local, and therefore destroyed after it.
    static thread_local FreesAtThreadEnd last;
    last.object = nullptr;
    object = EndingList::allocate();
    last.object = object;
  }).join();
  std::vector<void*> again;
  bool found = false;
  for (int i = 0; i < 4 * static_cast<int>(kPoolBatch) && !found; ++i) {
    again.push_back(EndingList::allocate());
    found = again.back() == object;
  }
  REQUIRE(found);
  for (void* each : again) EndingList::deallocate(each);
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow a fork of a process with threads
TEST_CASE("a child forked while other threads use the pool can use it") {
  using List = FreeList<352>;
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    std::vector<void*> objects;
    while (!stop.load(std::memory_order_relaxed)) {
      for (int i = 0; i < 200; ++i) objects.push_back(List::allocate());
      for (void* object : objects) List::deallocate(object);
      objects.clear();
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto outcome = testing::run_in_child([] {
      std::vector<void*> objects;
      for (int k = 0; k < 200; ++k) objects.push_back(List::allocate());
      for (void* object : objects) List::deallocate(object);
      return 0;
    });
    REQUIRE(outcome.exit_code == 0);
  }
  stop = true;
  busy.join();
}
#endif

}  // namespace
}  // namespace hetero::backend
