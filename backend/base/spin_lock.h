// SpinLock: a lock for critical sections of a few instructions. ForkSafeSpinLock survives fork().
//
// An uncontended lock and unlock cost one atomic exchange and one store, half of std::mutex's cost.
// The allocators' fast paths need that. Under contention the lock yields the processor, so a
// preempted holder does not stall the others for a time slice.
//
// A pthread_atfork handler also takes every ForkSafeSpinLock, so a child never inherits one that is
// locked by a thread which does not exist there. The order in which it takes them does not matter,
// because of this:
// REQUIRES: no thread holds two ForkSafeSpinLocks at once, and none forks while it holds one.
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

// The number of forks between the program's first process and this one. Objects that must not be
// used in a forked child remember its value at their creation.
int fork_generation();

}  // namespace hetero::backend
