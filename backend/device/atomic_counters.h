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
    return {.launches = read(launches_),
            .copies_in = read(copies_in_),
            .copies_out = read(copies_out_),
            .copy_batches = read(copy_batches_),
            .copies_from_peers = read(copies_from_peers_),
            .bytes_in = read(bytes_in_),
            .bytes_out = read(bytes_out_),
            .bytes_from_peers = read(bytes_from_peers_),
            .events_recorded = read(events_recorded_),
            .events_waited = read(events_waited_)};
  }

 private:
  using Count = std::atomic<int64_t>;
  static void add(Count& counter, int64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }
  static int64_t read(const Count& counter) { return counter.load(std::memory_order_relaxed); }

  Count launches_{0};
  Count copies_in_{0};
  Count copies_out_{0};
  Count copy_batches_{0};
  Count copies_from_peers_{0};
  Count bytes_in_{0};
  Count bytes_out_{0};
  Count bytes_from_peers_{0};
  Count events_recorded_{0};
  Count events_waited_{0};
};

}  // namespace hetero::backend
