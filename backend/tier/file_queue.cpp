// The lines of a queue: which operation is next, and what a call's result means for it.

#include "backend/tier/file_queue.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

namespace hetero::backend {
namespace {

// A regular file never says EAGAIN for long.
constexpr int kMostRepeats = 1000;
// So many reads may overtake a write.
constexpr int kMostOvertaking = 16;

}  // namespace

Result<std::unique_ptr<FileQueue>> FileQueue::make(const FileQueueOptions& options) {
  if (options.engine != FileEngine::kThreads) {
    auto made = make_uring_queue(options);
    if (auto* queue = std::get_if<std::unique_ptr<FileQueue>>(&made)) return std::move(*queue);
    if (options.engine == FileEngine::kUring) {
      return Status(ErrorClass::kStorage,
                    "io_uring cannot be used here: " + std::generic_category().message(std::get<int>(made)));
    }
  }
  return make_thread_queue(options);
}

void FileQueue::submit(std::vector<FileOperation> operations) {
  std::vector<Ended> ended;
  {
    const std::lock_guard guard(mutex_);
    for (FileOperation& operation : operations) {
      auto* request = new Request(std::move(operation));
      ++unfinished_;
      if (request->memory.left() == 0) {
        ended.push_back({request, 0});
      } else {
        (request->operation.call == FileCall::kRead ? reads_ : writes_).push_back(request);
      }
    }
    pump(ended);
  }
  tell(ended);
}

void FileQueue::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return unfinished_ == 0; });
}

void FileQueue::finish(Request* request, ssize_t result) {
  if (request->fault.kind == FileFault::kDelay) {
    std::this_thread::sleep_for(std::chrono::milliseconds(request->fault.milliseconds));
  }
  std::vector<Ended> ended;
  {
    const std::lock_guard guard(mutex_);
    const bool others = in_flight_ - 1 - (held_ != nullptr ? 1 : 0) > 0;
    if (request->fault.kind == FileFault::kReorder && held_ == nullptr && others) {
      held_ = request;
      held_result_ = result;
      return;
    }
    settle(request, result, ended);
    if (held_ != nullptr) settle(std::exchange(held_, nullptr), held_result_, ended);
    pump(ended);
  }
  tell(ended);
}

void FileQueue::settle(Request* request, ssize_t result, std::vector<Ended>& ended) {
  if (request->fault.kind == FileFault::kError) result = -request->fault.error;
  if (request->fault.kind == FileFault::kTorn && result > 0) result = static_cast<ssize_t>(request->memory.left());
  if ((result == -EINTR || result == -EAGAIN) && ++request->repeats < kMostRepeats) {
    again_.push_back(request);
    return;
  }
  if (result <= 0 || static_cast<size_t>(result) > request->memory.left()) {
    leave(request, result < 0 ? static_cast<int>(-result) : EIO, ended);
    return;
  }
  request->memory.advance(static_cast<size_t>(result));
  request->offset += result;
  if (request->memory.left() > 0) {
    again_.push_back(request);
  } else {
    leave(request, 0, ended);
  }
}

void FileQueue::leave(Request* request, int error, std::vector<Ended>& ended) {
  --in_flight_;
  if (request->operation.call == FileCall::kWrite) --writes_in_flight_;
  ended.push_back({request, error});
}

FileQueue::Request* FileQueue::next_waiting() {
  // Writes leave room for reads, which somebody waits for.
  const bool write_may_go = !writes_.empty() && writes_in_flight_ < std::max(1, depth_ / 2);
  const bool is_write = write_may_go && (reads_.empty() || reads_since_write_ >= kMostOvertaking);
  if (!is_write && reads_.empty()) return nullptr;
  std::deque<Request*>& line = is_write ? writes_ : reads_;
  Request* const request = line.front();
  line.pop_front();
  reads_since_write_ = is_write ? 0 : reads_since_write_ + 1;
  if (is_write) ++writes_in_flight_;
  return request;
}

void FileQueue::pump(std::vector<Ended>& ended) {
  for (;;) {
    std::vector<Request*> started = std::exchange(again_, {});
    while (in_flight_ < depth_) {
      Request* const request = next_waiting();
      if (request == nullptr) break;
      ++in_flight_;
      started.push_back(request);
    }
    if (started.empty()) return;
    if (in_flight_ > most_in_flight_) most_in_flight_ = in_flight_;
    for (Request* request : started) prepare(request);
    calls_ += static_cast<int64_t>(started.size());
    Refused refused;
    begin(started, refused);
    if (refused.empty()) return;
    for (const auto& [request, error] : refused) leave(request, error, ended);
  }
}

void FileQueue::prepare(Request* request) {
  const size_t left = request->memory.left();
  request->fault = next_file_fault(request->operation.call, request->operation.file, request->offset, left);
  switch (request->fault.kind) {
    case FileFault::kError:
      request->asked = 0;
      break;
    case FileFault::kShort:
    case FileFault::kTorn:
      request->asked = part_of(left);
      break;
    default:
      request->asked = left;
  }
}

void FileQueue::tell(const std::vector<Ended>& ended) {
  if (ended.empty()) return;
  for (const Ended& end : ended) {
    if (end.request->operation.done) end.request->operation.done(end.error);
    delete end.request;
  }
  const std::lock_guard guard(mutex_);
  unfinished_ -= static_cast<int64_t>(ended.size());
  // Under the lock: once drain() returns, the queue may be gone.
  if (unfinished_ == 0) idle_.notify_all();
}

}  // namespace hetero::backend
