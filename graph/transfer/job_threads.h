// JobThreads: a few threads that run jobs. The most urgent begins first; those of one priority
// begin in the order of submission.
//
//   JobThreads<Job> threads(4, [](Job& job) { ... });
//   threads.submit(job, TransferPriority::kGet);
//
// Thread safety: any thread may submit. The destructor runs what was submitted.

#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "graph/transfer/transfer_graph.h"

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

  void submit(Job job, TransferPriority priority) {
    {
      const std::lock_guard lock(mutex_);
      jobs_[static_cast<size_t>(priority)].push_back(std::move(job));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      auto next = jobs_.end();
      changed_.wait(lock, [&] {
        next = std::ranges::find_if(jobs_, [](const std::deque<Job>& queue) { return !queue.empty(); });
        return is_closing_ || next != jobs_.end();
      });
      if (next == jobs_.end()) return;
      Job job = std::move(next->front());
      next->pop_front();
      lock.unlock();
      run_(job);
      lock.lock();
    }
  }

  const std::function<void(Job&)> run_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::array<std::deque<Job>, kTransferPriorities> jobs_;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hetero::graph
