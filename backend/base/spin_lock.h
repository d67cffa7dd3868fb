// SpinLock: a lock for critical sections of a few instructions, that survives fork().
//
// An uncontended lock and unlock cost one atomic exchange and one store, half of what std::mutex
// costs, which is what the allocators' fast paths are made of. Under contention it yields the
// processor, so a preempted holder does not stall the others for a time slice.
//
// ForkSafeSpinLock is also taken by a pthread_atfork handler, so that a child never inherits it
// locked by a thread that does not exist there. REQUIRES: no thread holds two ForkSafeSpinLocks at
// once, and none forks while it holds one; that makes the order in which the handler takes them
// irrelevant.
//
// Thread safety: any thread. Both work with std::lock_guard.

#pragma once

#include <sched.h>

#include <atomic>

namespace hetero::backend {

class SpinLock {
 public:
  constexpr SpinLock() = default;
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire)) wait_until_free();
  }
  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  [[gnu::noinline]] void wait_until_free() {
    constexpr int kSpinsBeforeYield = 64;
    for (int spins = 0; locked_.load(std::memory_order_relaxed); ++spins) {
      if (spins < kSpinsBeforeYield) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
  }

  std::atomic<bool> locked_{false};
};

class ForkSafeSpinLock : public SpinLock {
 public:
  ForkSafeSpinLock();
  ~ForkSafeSpinLock();
};

// How many forks lie between the first process of the program and this one. An object that must not
// be used in a forked child remembers the value at its creation.
int fork_generation();

}  // namespace hetero::backend
