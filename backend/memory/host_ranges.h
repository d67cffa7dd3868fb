// HostRanges: large pieces of host memory that a device may page-lock, because their owner
// announces their end.
//
// Copies between a GPU and memory that is not page-locked go through small buffers, at the speed of
// one thread's memcpy. Locking takes about as long as a copy, so it pays for memory that is copied
// again and again, such as streamed weights. But if locked memory went back to the system, later
// copies would read other bytes. So an owner adds its memory here and removes it before releasing
// it. A device locks only what it finds here, the second time that it copies it.
//
// Thread safety: any thread. add() and remove() ignore ranges of less than kLeastBytes, at the cost
// of a comparison.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace hetero::backend {

class HostRanges {
 public:
  static constexpr size_t kLeastBytes = size_t{1} << 20;

  // How memory is locked, so that the GPU reads it in place. `lock` returns false if that is
  // refused.
  struct Locks {
    bool (*lock)(void* data, size_t bytes);
    void (*unlock)(void* data);
  };
  // Sets the locking from now on. One device locks.
  void set_locks(Locks locks);

  // Adds memory. It stays until it was removed as often as it was added.
  void add(void* data, size_t bytes) {
    if (bytes >= kLeastBytes) add_large(data, bytes);
  }
  // Removes and unlocks memory. REQUIRES: as it was added; no copy of it is under way.
  void remove(void* data, size_t bytes) {
    if (bytes >= kLeastBytes) remove_large(data);
  }

  // Whether these bytes are in a locked range. Locks the range at the second call.
  bool is_locked(const void* data, size_t bytes);

  // The number of locked ranges.
  int64_t locked() const;

 private:
  struct Range {
    size_t bytes = 0;
    int added = 0;
    int asked = 0;
    bool locked = false;
  };
  void add_large(void* data, size_t bytes);
  void remove_large(void* data);

  mutable std::mutex mutex_;
  Locks locks_{};
  std::map<uintptr_t, Range> ranges_;  // by their first address
};

// The process's ranges; leaked.
HostRanges& host_ranges();

}  // namespace hetero::backend
