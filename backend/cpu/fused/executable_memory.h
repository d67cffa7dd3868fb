// ExecutableMemory: pages of code that was generated at run time.
//
// Pages are written first and then made executable and read-only; no page is ever both. If the
// system refuses that (SELinux without execmem, PR_SET_MDWE), there is no executable memory, and
// callers must do without.
//
// Thread safety: immutable; any thread may destroy it once no thread runs the code.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace hetero::backend {

class ExecutableMemory {
 public:
  ExecutableMemory() = default;
  ~ExecutableMemory();
  ExecutableMemory(ExecutableMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ExecutableMemory& operator=(ExecutableMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // A copy of the code; empty if the system refuses it, or if the process would hold more than
  // `limit` bytes of such pages.
  static ExecutableMemory copy(std::span<const uint8_t> code, size_t limit);

  const void* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }

  // Bytes of pages that the process holds.
  static size_t bytes_in_use();

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace hetero::backend
