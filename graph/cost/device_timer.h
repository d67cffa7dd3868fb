// DeviceTimer: measures when a device's queues ran what was submitted, by timed events. For devices
// without a virtual clock.
//
//   timer.begin(device);
//   timer.before(position, queue);
//   queue.launch(task);
//   timer.after(queue);
//   ...                              // and the queues are waited for
//   timer.read(spans);
//
// A span begins when the queue reaches it. If the queue waits for the host, the span includes the
// host's time to submit.
//
// Thread safety: that of the run that it times. Events are kept from run to run.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/device/device.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

class DeviceTimer {
 public:
  // The first span begins at 0. REQUIRES: the device outlives the timer, or the next begin().
  void begin(backend::Device& device);
  void before(uint32_t position, backend::Queue& queue);
  void after(backend::Queue& queue);
  // Fills in the measured spans, by position. REQUIRES: all of it has run.
  void read(std::vector<Span>& spans) const;

 private:
  struct Timed {
    uint32_t position;
    size_t begin, end;  // events, by index
  };

  // The index of an event that the queue has recorded; kNone if that failed.
  size_t record(backend::Queue& queue);

  static constexpr size_t kNone = SIZE_MAX;

  backend::Device* device_ = nullptr;
  size_t used_ = 0;
  std::vector<std::unique_ptr<backend::Event>> events_;
  std::vector<Timed> timed_;
};

}  // namespace hetero::graph
