#include "backend/base/spin_lock.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace hetero::backend {
namespace {

// Leaked: locks of leaked objects outlive static destructors, and so must their registration.
struct ForkState {
  std::mutex mutex;
  std::vector<SpinLock*> locks;
  std::atomic<int> generation{0};
};

ForkState& fork_state();

void before_fork() {
  fork_state().mutex.lock();
  for (SpinLock* lock : fork_state().locks) lock->lock();
}

void release_after_fork() {
  for (SpinLock* lock : fork_state().locks) lock->unlock();
  fork_state().mutex.unlock();
}

void after_fork_in_child() {
  fork_state().generation.fetch_add(1, std::memory_order_relaxed);
  release_after_fork();
}

ForkState& fork_state() {
  static ForkState& state = *[] {
    auto* created = new ForkState;
    pthread_atfork(before_fork, release_after_fork, after_fork_in_child);
    return created;
  }();
  return state;
}

}  // namespace

ForkSafeSpinLock::ForkSafeSpinLock() {
  ForkState& state = fork_state();
  std::lock_guard guard(state.mutex);
  state.locks.push_back(this);
}

ForkSafeSpinLock::~ForkSafeSpinLock() {
  ForkState& state = fork_state();
  std::lock_guard guard(state.mutex);
  state.locks.erase(std::find(state.locks.begin(), state.locks.end(), this));
}

int fork_generation() { return fork_state().generation.load(std::memory_order_relaxed); }

}  // namespace hetero::backend
