// The engine of threads: each makes one call of preadv or pwritev after the other.

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "backend/base/blocked_signals.h"
#include "backend/tier/file_queue.h"

namespace hetero::backend {
namespace {

// More threads than this make no disk faster.
constexpr int kMostThreads = 32;

class ThreadQueue : public FileQueue {
 public:
  explicit ThreadQueue(int threads) : FileQueue(threads) {
    const BlockedSignals blocked;
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ThreadQueue() override {
    drain();
    {
      const std::lock_guard guard(mutex_);
      stops_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const char* engine() const override { return "threads"; }

 private:
  void begin(const std::vector<Request*>& requests, Refused&) override {
    ready_.insert(ready_.end(), requests.begin(), requests.end());
    for (size_t i = 0; i < requests.size(); ++i) wake_.notify_one();
  }

  void run() {
    for (;;) {
      Request* request = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stops_ || !ready_.empty(); });
        if (ready_.empty()) return;
        request = ready_.front();
        ready_.pop_front();
      }
      finish(request, move(*request));
    }
  }

  static ssize_t move(Request& request) {
    if (request.asked == 0) return 0;
    const std::span<const iovec> parts = request.parts();
    const auto call = request.operation.call == FileCall::kRead ? preadv : pwritev;
    const ssize_t moved = call(request.operation.file, parts.data(), static_cast<int>(parts.size()), request.offset);
    return moved < 0 ? -errno : moved;
  }

  std::deque<Request*> ready_;  // guarded by mutex_, as is stops_
  bool stops_ = false;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<FileQueue> make_thread_queue(const FileQueueOptions& options) {
  return std::make_unique<ThreadQueue>(std::clamp(options.depth, 1, kMostThreads));
}

}  // namespace hetero::backend
