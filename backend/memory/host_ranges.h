// HostRanges: large pieces of the host's memory whose end is announced, so that a device may
// page-lock them.
//
// Copies between a GPU and memory that is not page-locked go through small buffers, at the speed of
// one thread's memcpy. Locking takes about as long as a copy, so it pays for what is copied again
// and again, such as weights that are streamed. But memory that stays locked when it goes back to
// the system would make later copies read other bytes. So whoever owns memory adds it and removes
// it before it goes; a device locks only what it finds here, the second time it copies it.
//
// Thread safety: any thread. Ranges of less than kLeastBytes are passed over by add() and remove(),
// which costs a comparison.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace hetero::backend {

class HostRanges {
 public:
  static constexpr size_t kLeastBytes = size_t{1} << 20;

  // How memory is locked, so that the GPU reads it in place. `lock` is false where that is refused.
  struct Locks {
    bool (*lock)(void* data, size_t bytes);
    void (*unlock)(void* data);
  };
  // From now on; there is one device that locks.
  void set_locks(Locks locks);

  // Memory may be added more than once, and is here until it was removed as often.
  void add(void* data, size_t bytes) {
    if (bytes >= kLeastBytes) add_large(data, bytes);
  }
  // Unlocks it. REQUIRES: as it was added; no copy of it is under way.
  void remove(void* data, size_t bytes) {
    if (bytes >= kLeastBytes) remove_large(data);
  }

  // Whether these bytes lie in a range that is locked; it is from the second time on that somebody
  // asks.
  bool is_locked(const void* data, size_t bytes);

  // How many ranges are locked.
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

// Those of the process; leaked.
HostRanges& host_ranges();

}  // namespace hetero::backend
