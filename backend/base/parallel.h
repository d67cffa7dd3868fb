// parallel_for and run_at_once: how backend/ and graph/ use several cores.
//
// ops/ connects a pool when it is loaded: helpers of the calling thread, or PyTorch's threads.
// Without one, as in the torch-free tests, everything runs on the calling thread.
//
//   parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) { scale(data, begin, end); });
//
// Thread safety: any thread may call parallel_for, run_at_once and thread_count. The setters may be
// called at any time; running calls finish as they began.

#pragma once

#include <atomic>
#include <cstdint>

#include "backend/base/function_ref.h"

namespace hetero::backend {

// Work on the indices [begin, end).
using RangeFunction = FunctionRef<void(int64_t begin, int64_t end)>;

struct ParallelPool {
  // Calls `body` on disjoint ranges that cover [begin, end), each of `grain` indices or more where
  // possible, some of them on one thread after the other, and returns when all are done.
  void (*run)(int64_t begin, int64_t end, int64_t grain, RangeFunction body);
  int64_t (*thread_count)();
  // What run_at_once does. Null in a pool that cannot.
  void (*run_at_once)(int64_t members, RangeFunction body) = nullptr;
};

namespace parallel_detail {
inline std::atomic<const ParallelPool*> pool{nullptr};
inline std::atomic<void (*)()> worker_start_hook{nullptr};
inline std::atomic<void (*)(int)> thread_count_hook{nullptr};
}  // namespace parallel_detail

// Connects a pool; null returns to serial execution. REQUIRES: *pool lives for ever.
inline void set_parallel_pool(const ParallelPool* pool) {
  parallel_detail::pool.store(pool, std::memory_order_release);
}

// How many threads parallel_for may use here, the caller included: 1 within a parallel_for.
inline int64_t thread_count() {
  const ParallelPool* pool = parallel_detail::pool.load(std::memory_order_acquire);
  return pool == nullptr ? 1 : pool->thread_count();
}

// Calls body(begin, end) on disjoint ranges that cover [begin, end), possibly at the same time. A
// range of at most `grain` indices stays on the calling thread, without a call into the pool. An
// empty range calls nothing.
inline void parallel_for(int64_t begin, int64_t end, int64_t grain, RangeFunction body) {
  if (begin >= end) return;
  const ParallelPool* pool = parallel_detail::pool.load(std::memory_order_acquire);
  if (pool == nullptr || end - begin <= grain) {
    body(begin, end);
  } else {
    pool->run(begin, end, grain, body);
  }
}

// Calls body(begin, end) on disjoint ranges that cover [0, members), all at the same time: a body
// may wait until the others have come as far (barrier.h). There may be fewer ranges than members.
inline void run_at_once(int64_t members, RangeFunction body) {
  if (members <= 0) return;
  const ParallelPool* pool = parallel_detail::pool.load(std::memory_order_acquire);
  if (members == 1 || pool == nullptr || pool->run_at_once == nullptr) {
    body(0, members);
  } else {
    pool->run_at_once(members, body);
  }
}

// A device's worker threads call the hook once when they start, so that ops/ can give them the
// thread-local settings that kernels expect. REQUIRES: set before the first device with workers is
// used; later workers use the latest.
inline void set_worker_start_hook(void (*hook)()) {
  parallel_detail::worker_start_hook.store(hook, std::memory_order_release);
}
inline void run_worker_start_hook() {
  if (auto* hook = parallel_detail::worker_start_hook.load(std::memory_order_acquire)) hook();
}

// Sets the number of threads of the calling thread's parallel regions, through the hook of ops/.
// Without a hook it does nothing. Threads with cores of their own (threads/core_group.h) call it
// when they start; the threads of their regions inherit the cores.
inline void set_thread_count_hook(void (*hook)(int threads)) {
  parallel_detail::thread_count_hook.store(hook, std::memory_order_release);
}
inline void use_thread_count(int threads) {
  if (auto* hook = parallel_detail::thread_count_hook.load(std::memory_order_acquire)) hook(threads);
}

}  // namespace hetero::backend
