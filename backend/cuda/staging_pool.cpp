#include "backend/cuda/staging_pool.h"

#include <chrono>

#include "backend/cuda/cuda_status.h"

namespace hetero::backend {

StagingPool::~StagingPool() {
  for (void* buffer : all_) cudaFreeHost(buffer);
}

// No call of CUDA is made under the lock: the driver may wait in it for host functions, of which
// some wait for the lock, to give their buffers back.
Result<void*> StagingPool::acquire(const std::function<Status()>& check_stream) {
  std::unique_lock lock(mutex_);
  Status made;
  if (free_.empty() && count_ < kBuffers) {
    ++count_;
    lock.unlock();
    void* buffer = nullptr;
    // Portable: pinned for every GPU and every context of the process.
    made = cuda_status(cudaHostAlloc(&buffer, kBufferBytes, cudaHostAllocPortable), "cudaHostAlloc");
    lock.lock();
    if (made.ok()) {
      all_.push_back(buffer);
      return buffer;
    }
    --count_;
  }
  while (!released_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !free_.empty(); })) {
    if (count_ == 0) return made;
    // A failed stream runs no host functions, so it would never release its buffers.
    lock.unlock();
    if (Status status = check_stream(); !status.ok()) return status;
    lock.lock();
  }
  void* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

void StagingPool::release(void* buffer) {
  std::lock_guard lock(mutex_);
  free_.push_back(buffer);
  released_.notify_one();
}

}  // namespace hetero::backend
