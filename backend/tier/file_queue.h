// FileQueue: reads and writes of files that go on while the caller does something else.
//
// Operations wait in two lines, of reads and of writes; reads go first. A bounded number is in
// flight. A short transfer is resumed, an interrupted one repeated, and a file that ends too early
// is an error: an operation succeeds when all of its bytes were moved.
//
// Two engines move the bytes: io_uring, or threads that call preadv and pwritev. Containers often
// forbid io_uring, so it is tried when a queue is made.
//
// io_uring looks up and pins the pages of each call, unless it knows the memory. So the queue
// registers `options.memory`, part by part, when an operation first lies in a part. Registered
// pages stay in memory, and count against RLIMIT_MEMLOCK. At the first refusal the queue goes on
// with the parts that it has.
//
//   Result<std::unique_ptr<FileQueue>> queue = FileQueue::make({.engine = FileEngine::kAuto});
//   queue.value()->submit(std::move(operations));
//   queue.value()->drain();
//
// Thread safety: any thread. submit() never waits for an operation. `done` runs on a thread of the
// queue, or before submit() returns if the system takes no operation; it may submit more.
// Ownership: the memory and the file of an operation must live until its `done` was called. The
// destructor drains.

#pragma once

#include <sys/uio.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "backend/base/status.h"
#include "backend/file/file_transfer.h"
#include "backend/tier/file_engine.h"

namespace hetero::backend {

struct FileOperation {
  FileCall call = FileCall::kRead;  // or kWrite
  int file = -1;
  int64_t offset = 0;
  std::vector<iovec> memory;
  std::function<void(int error)> done;  // 0, or an errno
};

struct FileQueueOptions {
  FileEngine engine = FileEngine::kAuto;
  int depth = 32;   // operations in flight, at most; at least 1
  int threads = 2;  // that call `done`, with io_uring; at least 1
  // Where most operations have their memory; it must outlive the queue. Parts of `part_bytes`, on
  // page borders, are registered. Empty: none is.
  std::span<std::byte> memory{};
  size_t part_bytes = size_t{16} << 20;
};

// What a queue has registered of its memory.
struct RegisteredMemory {
  int64_t bytes = 0;
  int64_t calls = 0;  // of the system, whose bytes all lay in one registered part
  int error = 0;      // an errno: why no more is registered; 0 if nothing was refused
};

class FileQueue {
 public:
  // Errors: kStorage if io_uring is asked for by name and cannot be had.
  static Result<std::unique_ptr<FileQueue>> make(const FileQueueOptions& options);
  virtual ~FileQueue() = default;
  FileQueue(const FileQueue&) = delete;

  void submit(std::vector<FileOperation> operations);
  // Waits until every operation's `done` has returned. REQUIRES: not called by `done`.
  void drain();

  virtual const char* engine() const = 0;
  int64_t calls() const { return calls_; }                // of the system, repeated ones included
  int most_in_flight() const { return most_in_flight_; }  // so far
  virtual RegisteredMemory registered() const { return {}; }

 protected:
  // One operation, from submit() until its `done` has returned.
  struct Request {
    explicit Request(FileOperation&& from)
        : operation(std::move(from)), memory(std::move(operation.memory)), offset(operation.offset) {}
    // What the next call of the system moves.
    std::span<const iovec> parts() { return memory.next(asked); }

    FileOperation operation;
    TransferMemory memory;
    int64_t offset;
    size_t asked = 0;  // bytes of the next call; 0: a fault decides it, so it moves nothing
    FileFault fault;   // of the next call
    int repeats = 0;
  };
  using Refused = std::vector<std::pair<Request*, int>>;

  explicit FileQueue(int depth) : depth_(depth) {}

  // Makes one call of the system for each request, which ends in finish(). Those that the engine
  // does not take are added to `refused`, with their errno. Called with mutex_ held.
  virtual void begin(const std::vector<Request*>& requests, Refused& refused) = 0;
  // The call moved `result` bytes, or failed with -result. Called without mutex_.
  void finish(Request* request, ssize_t result);

  std::mutex mutex_;

 private:
  struct Ended {
    Request* request;
    int error;
  };
  // All three are called with mutex_ held. Start what may be in flight; take in a result; prepare
  // the next call of a request.
  void pump(std::vector<Ended>& ended);
  void settle(Request* request, ssize_t result, std::vector<Ended>& ended);
  void prepare(Request* request);
  void leave(Request* request, int error, std::vector<Ended>& ended);
  Request* next_waiting();
  void tell(const std::vector<Ended>& ended);

  const int depth_;
  // Guarded by mutex_:
  std::deque<Request*> reads_, writes_;  // waiting
  std::vector<Request*> again_;          // in flight, with bytes left
  int in_flight_ = 0, writes_in_flight_ = 0, reads_since_write_ = 0;
  int64_t unfinished_ = 0;
  Request* held_ = nullptr;  // completed, but reordered by a fault
  ssize_t held_result_ = 0;

  std::condition_variable idle_;  // unfinished_ became 0
  std::atomic<int64_t> calls_{0};
  std::atomic<int> most_in_flight_{0};
};

// The engines. An errno where io_uring cannot be had.
std::variant<std::unique_ptr<FileQueue>, int> make_uring_queue(const FileQueueOptions& options);
std::unique_ptr<FileQueue> make_thread_queue(const FileQueueOptions& options);

// For tests: io_uring_setup fails with this errno from now on; 0: it does not.
void set_uring_error(int error);

}  // namespace hetero::backend
