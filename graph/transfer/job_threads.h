// JobThreads: a few threads that run jobs, which begin in the order of submission.
//
//   JobThreads<Job> threads(4, [](Job& job) { ... });
//   threads.submit(job);
//
// Thread safety: any thread may submit. The destructor runs what was submitted.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace hetero::graph {

template <typename Job>
class JobThreads {
 public:
  JobThreads(int threads, std::function<void(Job&)> run) : run_(std::move(run)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~JobThreads() {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  JobThreads(const JobThreads&) = delete;

  void submit(Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_closing_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      run_(job);
      lock.lock();
    }
  }

  const std::function<void(Job&)> run_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hetero::graph
