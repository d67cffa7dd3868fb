// Barrier: threads of one run_at_once wait for one another.
//
//   Barrier barrier(members);
//   run_at_once(members, [&](int64_t begin, int64_t end) {
//     for (int step = 0; step < steps; ++step) {
//       for (int64_t member = begin; member < end; ++member) work(step, member);
//       barrier.wait(end - begin);  // all members have done the step
//     }
//   });
//
// A thread spins, since the others are a microsecond away, and yields its core if they are not.
//
// Thread safety: any thread.

#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace hetero::backend {

class Barrier {
 public:
  explicit Barrier(int64_t members) : members_(members) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  // Returns true once it was called for all members, of which the caller is so many. False, from
  // then on, once somebody gave up.
  bool wait(int64_t of_caller) {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (waiting_.fetch_add(of_caller, std::memory_order_acq_rel) + of_caller == members_) {
      waiting_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
    } else {
      for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
        if (given_up_.load(std::memory_order_relaxed)) return false;
        if (spins < kSpinsBeforeYield) {
          __builtin_ia32_pause();
        } else {
          sched_yield();
        }
      }
    }
    return !given_up_.load(std::memory_order_relaxed);
  }
  // For who cannot come as far as the others, such as by an exception.
  void give_up() { given_up_.store(true, std::memory_order_relaxed); }

 private:
  static constexpr int kSpinsBeforeYield = 256;

  const int64_t members_;
  alignas(64) std::atomic<int64_t> waiting_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<bool> given_up_{false};
};

}  // namespace hetero::backend
