// ConnectionThreads: a thread for each connection, made when no thread is free.
//
//   server.new_task_queue = [] { return new ConnectionThreads(256); };
//
// httplib::ThreadPool makes all threads at once and uses them in turn. malloc keeps up to 230 KiB
// of freed blocks for each thread, so the process grew for hours, by as much as 60 MiB.
//
// Thread safety: `enqueue` and `shutdown` are the listening thread's.

#pragma once

#include <httplib.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace hetero::qwen3 {

class ConnectionThreads final : public httplib::TaskQueue {
  // Later versions of cpp-httplib ask whether the job was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));

 public:
  // More connections than `most` wait for a thread.
  explicit ConnectionThreads(size_t most) : most_(most) {}
  ConnectionThreads(const ConnectionThreads&) = delete;

  // Errors: std::system_error where not even a first thread can be made.
  Taken enqueue(std::function<void()> job) override {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (jobs_.size() > free_ && threads_.size() < most_) add_thread();
    wake_.notify_one();
    return Taken(true);
  }

  // Waits for the jobs that were enqueued.
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void add_thread() {
    try {
      threads_.emplace_back([this] { work(); });
      ++free_;
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      --free_;
      lock.unlock();
      job();
      lock.lock();
      ++free_;
    }
  }

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  size_t free_ = 0;  // threads that wait for a job, or are about to
  bool ends_ = false;
};

}  // namespace hetero::qwen3
