// AtomicCounters: the counters behind Device::counters(), updated by any thread.
//
// Thread safety: any thread. They are relaxed, so figures read at one moment may be inconsistent.

#pragma once

#include <atomic>
#include <cstdint>

#include "backend/device/device.h"

namespace hetero::backend {

class AtomicCounters {
 public:
  void count_launch() { add(launches_, 1); }
  void count_record() { add(events_recorded_, 1); }
  void count_wait() { add(events_waited_, 1); }
  // A copy within the device, or within the host, is none.
  void count_copy(bool into_device, bool from_device, size_t bytes) {
    if (into_device == from_device) return;
    add(into_device ? copies_in_ : copies_out_, 1);
    add(into_device ? bytes_in_ : bytes_out_, static_cast<int64_t>(bytes));
  }

  void count_copy_from_peer(size_t bytes) {
    add(copies_from_peers_, 1);
    add(bytes_from_peers_, static_cast<int64_t>(bytes));
  }
  void count_copy_batch() { add(copy_batches_, 1); }

  DeviceCounters read() const {
    DeviceCounters counters;
#define DEVICE_COUNTER(field, text) counters.field = read(field##_);
#include "backend/device/figures.def"
    return counters;
  }

 private:
  using Count = std::atomic<int64_t>;
  static void add(Count& counter, int64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }
  static int64_t read(const Count& counter) { return counter.load(std::memory_order_relaxed); }

#define DEVICE_COUNTER(field, text) Count field##_{0};
#include "backend/device/figures.def"
};

}  // namespace hetero::backend
