// The engine of io_uring: one ring, a thread that waits for completions, and others that help it.
//
// The thread that waits ends what it finds itself, as no other thread has to wake up for that.
// Where it finds several completions, it shares them: one thread can be too slow to verify what a
// fast disk reads.

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
// It is quicker to verify so many bytes than to wake a thread for them.
constexpr ssize_t kKeptBytes = ssize_t{512} << 10;
// So many completions are taken at once.
constexpr size_t kMostTaken = 16;

// The kernel's limits of a table of registered memory, and of an entry.
constexpr size_t kMostParts = size_t{1} << 14;
constexpr size_t kMostPartBytes = size_t{1} << 30;

bool is_passing(int error) { return error == -EINTR || error == -EAGAIN || error == -EBUSY; }

// The parts of the queue's memory that a ring has registered. Thread safety: one thread at a time,
// but counts() is for any.
class RegisteredParts {
 public:
  // Without a table, which old kernels lack, no part is registered.
  void open(io_uring& ring, std::span<std::byte> memory, size_t part_bytes) {
    if (memory.empty()) return;
    memory_ = memory;
    part_bytes_ = std::clamp(part_bytes, size_t{4096}, kMostPartBytes);
    states_.resize(std::min((memory.size() + part_bytes_ - 1) / part_bytes_, kMostParts));
    const std::vector<iovec> empty(states_.size());
    note(io_uring_register_buffers(&ring, empty.data(), static_cast<unsigned>(empty.size())));
  }

  // The part in which the bytes lie, which is registered if it can be; none: -1.
  int find(io_uring& ring, const iovec& bytes) {
    const size_t offset = reinterpret_cast<uintptr_t>(bytes.iov_base) - reinterpret_cast<uintptr_t>(memory_.data());
    if (offset >= memory_.size() || bytes.iov_len > memory_.size() - offset) return -1;
    const size_t part = offset / part_bytes_;
    if (part >= states_.size() || offset % part_bytes_ + bytes.iov_len > part_bytes_) return -1;
    if (states_[part] == 0 && error_ == 0) add(ring, part);
    if (states_[part] == 0) return -1;
    ++calls_;
    return static_cast<int>(part);
  }

  RegisteredMemory counts() const { return {bytes_, calls_, error_}; }

 private:
  void note(int result) {
    if (result < 0 && !is_passing(result)) error_ = -result;
  }

  void add(io_uring& ring, size_t part) {
    const size_t begin = part * part_bytes_;
    const iovec range{memory_.data() + begin, std::min(part_bytes_, memory_.size() - begin)};
    __u64 tag = 0;
    const int added = io_uring_register_buffers_update_tag(&ring, static_cast<unsigned>(part), &range, &tag, 1);
    note(added);
    if (added != 1) return;
    states_[part] = 1;
    bytes_ += static_cast<int64_t>(range.iov_len);
  }

  std::span<std::byte> memory_;
  size_t part_bytes_ = 1;
  std::vector<uint8_t> states_;  // of parts; 1: registered
  std::atomic<int64_t> bytes_{0}, calls_{0};
  std::atomic<int> error_{0};
};

class UringQueue : public FileQueue {
 public:
  explicit UringQueue(int depth) : FileQueue(depth) {}
  ~UringQueue() override {
    if (!threads_.empty()) {
      drain();
      const uint64_t one = 1;
      {
        const std::lock_guard guard(sharing_);
        stops_ = true;
      }
      help_.notify_all();
      (void)!write(stop_, &one, sizeof(one));
      for (std::thread& thread : threads_) thread.join();
    }
    if (has_ring_) io_uring_queue_exit(&ring_);
    if (stop_ >= 0) close(stop_);
  }

  // Returns 0 or an errno. A filter may allow to make a ring, but not to use it.
  int start(int depth, int threads, std::span<std::byte> memory, size_t part_bytes) {
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
    parts_.open(ring_, memory, part_bytes);
    // Wakes the thread that waits when the queue ends, whatever the ring's state.
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    io_uring_prep_poll_add(entry, stop_, POLLIN);
    io_uring_sqe_set_data(entry, nullptr);
    if (const int error = io_uring_submit(&ring_); error < 0) return -error;
    const BlockedSignals blocked;
    // The threads look at their number only.
    threads_.resize(static_cast<size_t>(threads));
    for (std::thread& thread : threads_) {
      const bool waits = &thread == &threads_[0];
      thread = std::thread([this, waits] { waits ? run() : help(); });
    }
    return 0;
  }

  const char* engine() const override { return "io_uring"; }
  RegisteredMemory registered() const override { return parts_.counts(); }

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

  void prepare_entry(io_uring_sqe* entry, Request& request) {
    if (request.asked == 0) {
      io_uring_prep_nop(entry);
      return;
    }
    const std::span<const iovec> parts = request.parts();
    const auto offset = static_cast<uint64_t>(request.offset);
    const bool is_read = request.operation.call == FileCall::kRead;
    const int part = parts.size() == 1 ? parts_.find(ring_, parts[0]) : -1;
    if (part >= 0) {
      const auto bytes = static_cast<unsigned>(parts[0].iov_len);
      is_read ? io_uring_prep_read_fixed(entry, request.operation.file, parts[0].iov_base, bytes, offset, part)
              : io_uring_prep_write_fixed(entry, request.operation.file, parts[0].iov_base, bytes, offset, part);
      return;
    }
    (is_read ? io_uring_prep_readv : io_uring_prep_writev)(entry, request.operation.file, parts.data(),
                                                           static_cast<unsigned>(parts.size()), offset);
  }

  struct Completion {
    Request* request;
    ssize_t result;
  };

  // Waits for a completion, and takes those that are there.
  void wait(std::vector<Completion>& completions) {
    io_uring_cqe* completion = nullptr;
    while (!stops_) {
      const int error = io_uring_wait_cqe(&ring_, &completion);
      if (error == 0) break;
      if (is_passing(error)) continue;
      // Waiting is forbidden by now: completions arrive in memory all the same.
      if (io_uring_peek_cqe(&ring_, &completion) == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (stops_) return;
    do {
      auto* const request = static_cast<Request*>(io_uring_cqe_get_data(completion));
      if (request != nullptr) completions.push_back({request, completion->res});
      io_uring_cqe_seen(&ring_, completion);
    } while (completions.size() < kMostTaken && io_uring_peek_cqe(&ring_, &completion) == 0);
  }

  // Of the thread that waits.
  void run() {
    std::vector<Completion> completions;
    while (!stops_) {
      wait(completions);
      size_t kept = 0;
      for (ssize_t bytes = 0; kept < completions.size() && bytes < kKeptBytes; ++kept)
        bytes += completions[kept].result;
      if (kept < completions.size() && threads_.size() > 1) {
        const auto rest = completions.begin() + static_cast<ptrdiff_t>(kept);
        const std::lock_guard guard(sharing_);
        shared_.insert(shared_.end(), rest, completions.end());
        completions.erase(rest, completions.end());
        help_.notify_one();
      }
      do {
        for (const Completion& completion : completions) finish(completion.request, completion.result);
        completions.clear();
      } while (take_shared(completions));
    }
  }

  // Of the others.
  void help() {
    std::vector<Completion> completions;
    std::unique_lock lock(sharing_);
    for (;;) {
      help_.wait(lock, [&] { return stops_ || !shared_.empty(); });
      if (shared_.empty()) return;
      lock.unlock();
      while (take_shared(completions)) {
        finish(completions[0].request, completions[0].result);
        completions.clear();
      }
      lock.lock();
    }
  }

  // Takes one, where there is one.
  bool take_shared(std::vector<Completion>& completions) {
    const std::lock_guard guard(sharing_);
    if (shared_.empty()) return false;
    completions.push_back(shared_.front());
    shared_.pop_front();
    return true;
  }

  io_uring ring_ = {};
  bool has_ring_ = false;
  int stop_ = -1;  // readable when the threads shall end
  std::atomic<bool> stops_{false};
  std::mutex sharing_;
  std::deque<Completion> shared_;  // guarded by sharing_
  std::condition_variable help_;
  RegisteredParts parts_;          // find() is guarded by mutex_
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
  if (const int error = queue->start(depth, std::max(1, options.threads), options.memory, options.part_bytes))
    return error;
  return queue;
#else
  return ENOSYS;
#endif
}

}  // namespace hetero::backend
