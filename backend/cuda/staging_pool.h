// StagingPool: a few pinned host buffers for copies between pageable memory and a GPU.
//
// The thread that submits a copy acquires a buffer. The stream releases it at the end of the copy.
// Buffers are made on demand, at most kBuffers of kBufferBytes, and kept.
//
// Thread safety: any thread; a host function of a stream may call release.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "backend/base/status.h"

namespace hetero::backend {

class StagingPool {
 public:
  static constexpr size_t kBufferBytes = size_t{4} << 20;
  static constexpr size_t kBuffers = 8;

  StagingPool() = default;
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // A free buffer; blocks while all are in use. `check_stream` is asked now and then whether the
  // stream that is to release one is still healthy; its error ends the wait. Errors: that one, or
  // kResource.
  Result<void*> acquire(const std::function<Status()>& check_stream);
  void release(void* buffer);

 private:
  std::mutex mutex_;
  std::condition_variable released_;
  // Guarded by mutex_.
  size_t count_ = 0;  // of those that are there or being made
  std::vector<void*> all_;
  std::vector<void*> free_;
};

}  // namespace hetero::backend
