// The engine of io_uring: one ring, and threads that take turns to wait for completions.
//
// The thread that waits holds a lock until it has one completion. It then lets the next thread wait
// and ends the operation itself. So checksums are computed while the disk reads on.

#include <atomic>
#include <cerrno>

#include "backend/tier/file_queue.h"

#ifdef HETERO_WITH_URING
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "backend/base/blocked_signals.h"
#endif

namespace hetero::backend {
namespace {

std::atomic<int> setup_error{0};

#ifdef HETERO_WITH_URING

constexpr int kMostDepth = 1024;

bool is_passing(int error) { return error == -EINTR || error == -EAGAIN || error == -EBUSY; }

class UringQueue : public FileQueue {
 public:
  explicit UringQueue(int depth) : FileQueue(depth) {}
  ~UringQueue() override {
    if (!threads_.empty()) {
      drain();
      const uint64_t one = 1;
      stops_ = true;
      (void)!write(stop_, &one, sizeof(one));
      for (std::thread& thread : threads_) thread.join();
    }
    if (has_ring_) io_uring_queue_exit(&ring_);
    if (stop_ >= 0) close(stop_);
  }

  // Returns 0 or an errno. A filter may allow to make a ring, but not to use it.
  int start(int depth, int threads) {
    if (const int error = setup_error) return error;
    if (const int error = io_uring_queue_init(static_cast<unsigned>(depth + 1), &ring_, 0)) return -error;
    has_ring_ = true;
    stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_ < 0) return errno;
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    int submitted = 0;
    while (is_passing(submitted = io_uring_submit_and_wait(&ring_, 1))) {
    }
    if (submitted < 0) return -submitted;
    io_uring_cqe* completion = nullptr;
    if (const int error = io_uring_peek_cqe(&ring_, &completion)) return -error;
    io_uring_cqe_seen(&ring_, completion);
    // Wakes the thread that waits when the queue ends, whatever the ring's state.
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    io_uring_prep_poll_add(entry, stop_, POLLIN);
    io_uring_sqe_set_data(entry, nullptr);
    if (const int error = io_uring_submit(&ring_); error < 0) return -error;
    const BlockedSignals blocked;
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
    return 0;
  }

  const char* engine() const override { return "io_uring"; }

 private:
  void begin(const std::vector<Request*>& requests, Refused& refused) override {
    for (Request* request : requests) {
      io_uring_sqe* const entry = broken_ == 0 ? io_uring_get_sqe(&ring_) : nullptr;
      if (entry == nullptr) {
        refused.emplace_back(request, broken_ == 0 ? EBUSY : broken_);
        continue;
      }
      prepare_entry(entry, *request);
      io_uring_sqe_set_data(entry, request);
      entered_.push_back(request);
    }
    while (!entered_.empty()) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted >= 0) {
        entered_.erase(entered_.begin(), entered_.begin() + std::min<ptrdiff_t>(submitted, std::ssize(entered_)));
      } else if (is_passing(submitted)) {
        std::this_thread::yield();
      } else {
        // What is left in the ring must never reach the system: its requests end here.
        broken_ = -submitted;
        for (Request* request : entered_) refused.emplace_back(request, broken_);
        entered_.clear();
      }
    }
  }

  static void prepare_entry(io_uring_sqe* entry, Request& request) {
    if (request.asked == 0) {
      io_uring_prep_nop(entry);
      return;
    }
    const std::span<const iovec> parts = request.parts();
    const auto offset = static_cast<uint64_t>(request.offset);
    const bool is_read = request.operation.call == FileCall::kRead;
    (is_read ? io_uring_prep_readv : io_uring_prep_writev)(entry, request.operation.file, parts.data(),
                                                           static_cast<unsigned>(parts.size()), offset);
  }

  void run() {
    for (;;) {
      Request* request = nullptr;
      ssize_t result = 0;
      {
        const std::lock_guard turn(turn_);
        io_uring_cqe* completion = nullptr;
        for (int error = 0; completion == nullptr;) {
          if (stops_) return;
          error = io_uring_wait_cqe(&ring_, &completion);
          if (error == 0) break;
          completion = nullptr;
          if (is_passing(error)) continue;
          // Waiting is forbidden by now: completions arrive in memory all the same.
          if (io_uring_peek_cqe(&ring_, &completion) != 0) {
            completion = nullptr;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }
        request = static_cast<Request*>(io_uring_cqe_get_data(completion));
        result = completion->res;
        io_uring_cqe_seen(&ring_, completion);
      }
      if (request != nullptr) finish(request, result);
    }
  }

  io_uring ring_ = {};
  bool has_ring_ = false;
  int stop_ = -1;  // readable when the threads shall end
  std::atomic<bool> stops_{false};
  std::mutex turn_;                // of waiting
  std::vector<Request*> entered_;  // in the ring, not yet with the system; guarded by mutex_
  int broken_ = 0;                 // errno of a submission that failed; guarded by mutex_
  std::vector<std::thread> threads_;
};

#endif

}  // namespace

void set_uring_error(int error) { setup_error = error; }

std::variant<std::unique_ptr<FileQueue>, int> make_uring_queue([[maybe_unused]] const FileQueueOptions& options) {
#ifdef HETERO_WITH_URING
  const int depth = std::clamp(options.depth, 1, kMostDepth);
  auto queue = std::make_unique<UringQueue>(depth);
  if (const int error = queue->start(depth, std::max(1, options.threads))) return error;
  return queue;
#else
  return ENOSYS;
#endif
}

}  // namespace hetero::backend
