#include "backend/threads/helpers.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/blocked_signals.h"
#include "backend/base/spin_lock.h"

namespace hetero::backend {
namespace {

using Clock = std::chrono::steady_clock;

// How long a helper waits for the next loop with its core. Loops of a program follow each other
// sooner.
constexpr std::chrono::microseconds kSpin{200};
// How long the caller waits so for a helper, which may have lost its core.
constexpr std::chrono::microseconds kCallerSpin{30};
constexpr int kBetweenLooks = 32;  // at the clock

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns whether `ready()` came within the time.
template <typename Ready>
bool spin(std::chrono::microseconds most, const Ready& ready) {
  const auto end = Clock::now() + most;
  do {
    for (int i = 0; i < kBetweenLooks; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return ready();
}

}  // namespace

struct Helpers::Shared {
  // The number of the loop, or of the pause behind it, which is odd.
  alignas(64) std::atomic<uint32_t> turn{1};
  RangePieces* pieces = nullptr;
  RangeFunction* body = nullptr;
  std::atomic<bool> rests{false}, ends{false};
  // Helpers that look at the loop.
  alignas(64) std::atomic<uint32_t> inside{0};
  std::mutex mutex;
  std::exception_ptr error;
  // Per helper the number of the last loop that wants it.
  struct alignas(64) Bell {
    std::atomic<uint32_t> turn{0};
  };
  std::vector<Bell> bells;

  void ring(size_t number, uint32_t of) {
    bells[number].turn.store(of);
    bells[number].turn.notify_one();
  }
};

Helpers::Helpers(int64_t count, void (*start)())
    : shared_(std::make_shared<Shared>()), fork_generation_(fork_generation()) {
  shared_->bells = std::vector<Shared::Bell>(static_cast<size_t>(count));
  const BlockedSignals blocked;
  try {
    for (; count_ < shared_->bells.size(); ++count_) std::thread(&Helpers::help, shared_, count_, start).detach();
  } catch (const std::system_error&) {
    // Those that are there have to do.
  }
}

Helpers::~Helpers() {
  shared_->ends = true;
  const uint32_t last = shared_->turn.load() + 2;
  shared_->turn = last;
  for (size_t i = 0; i < count_; ++i) shared_->ring(i, last);
}

void Helpers::help(const std::shared_ptr<Shared>& shared, size_t number, void (*start)()) {
  start();
  Shared& s = *shared;
  const std::atomic<uint32_t>& bell = s.bells[number].turn;
  for (uint32_t seen = 0;;) {
    const auto is_over = [&] {
      return bell.load(std::memory_order_acquire) != seen || s.rests.load(std::memory_order_relaxed);
    };
    spin(kSpin, is_over);
    bell.wait(seen);
    if (s.ends) return;
    seen = bell.load();
    // Either the caller sees this helper inside, or this one sees that the loop is over.
    ++s.inside;
    if (s.turn.load() == seen) {
      try {
        s.pieces->work(static_cast<int64_t>(number) + 1, *s.body);
      } catch (...) {
        const std::lock_guard lock(s.mutex);
        if (s.error == nullptr) s.error = std::current_exception();
      }
    }
    if (--s.inside == 0) s.inside.notify_one();
  }
}

void Helpers::rest() { shared_->rests.store(true, std::memory_order_relaxed); }

void Helpers::run(RangePieces& pieces, int64_t threads, RangeFunction body) {
  if (fork_generation() != fork_generation_) return pieces.work(0, body);
  Shared& s = *shared_;
  s.pieces = &pieces;
  s.body = &body;
  s.rests = false;
  const uint32_t turn = ++s.turn;
  const size_t wanted = std::min(static_cast<size_t>(threads - 1), count_);
  for (size_t i = 0; i < wanted; ++i) s.ring(i, turn);
  std::exception_ptr error;
  try {
    pieces.work(0, body);
  } catch (...) {
    error = std::current_exception();
  }
  ++s.turn;
  const auto is_empty = [&] { return s.inside.load() == 0; };
  if (!spin(kCallerSpin, is_empty)) {
    for (uint32_t inside; (inside = s.inside.load()) != 0;) s.inside.wait(inside);
  }
  if (s.error != nullptr) error = std::exchange(s.error, nullptr);
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace hetero::backend
