// Waiting for what another thread does, though not for ever: a test whose threads wait for each other in vain fails instead of hanging.
//
// Thread safety: any thread. An exception on a thread of the test's own ends the program with its text; in a kernel or a handler it is the request's error.

#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace hetero::graph::testing {

// Far more than anything takes, on whatever machine.
inline constexpr std::chrono::minutes kPatience{2};

[[noreturn]] inline void give_up() { throw std::runtime_error("a test waited in vain for another thread"); }

template <typename Condition>
void wait_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) give_up();
    std::this_thread::yield();
  }
}

// Who arrives goes on when as many have come as are expected; then it begins anew.
class Rendezvous {
 public:
  explicit Rendezvous(int expected) : expected_(expected) {}
  void arrive() {
    std::unique_lock lock(mutex_);
    const int all = (arrived_ / expected_ + 1) * expected_;
    ++arrived_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, kPatience, [&] { return arrived_ >= all; })) give_up();
  }

 private:
  const int expected_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
};

}  // namespace hetero::graph::testing
