// Scratch: a thread's memory that is kept from call to call, so that steady kernels do not
// allocate.
//
//   static thread_local Scratch memory;
//   auto* const sums = memory.get<float>(count);  // aligned to a cache line; growing loses the
//                                                 content
//
// Thread safety: each object belongs to one thread. Other threads may use its memory while the
// owner waits for them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "backend/base/rounding.h"

namespace hetero::backend {

class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { ::operator delete(memory_, kAlignment); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <typename T = std::byte>
  T* get(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (bytes > bytes_) {
      ::operator delete(memory_, kAlignment);
      memory_ = nullptr;
      bytes_ = 0;
      const int64_t rounded = round_up(bytes, kPage);
      memory_ = ::operator new(static_cast<size_t>(rounded), kAlignment);
      bytes_ = rounded;
    }
    return static_cast<T*>(memory_);
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr int64_t kPage = 4096;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace hetero::backend
