#include "backend/cuda/staging_pool.h"

#include <chrono>

#include "backend/cuda/cuda_status.h"

namespace hetero::backend {

StagingPool::~StagingPool() {
  for (void* buffer : all_) cudaFreeHost(buffer);
}

Result<void*> StagingPool::acquire(const std::function<Status()>& check_stream) {
  std::unique_lock lock(mutex_);
  if (free_.empty() && all_.size() < kBuffers) {
    void* buffer = nullptr;
    // Portable: pinned for every GPU and every context of the process.
    const Status made = cuda_status(cudaHostAlloc(&buffer, kBufferBytes, cudaHostAllocPortable), "cudaHostAlloc");
    if (made.ok()) {
      all_.push_back(buffer);
      return buffer;
    }
    if (all_.empty()) return made;
  }
  // A failed stream runs no host functions, so it would never release its buffers.
  while (!released_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !free_.empty(); })) {
    if (Status status = check_stream(); !status.ok()) return status;
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
