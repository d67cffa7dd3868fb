// What a run reports, and what it may do on the side: counts, times and uploads.
//
// Thread safety: plain data.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/device/device.h"
#include "graph/ir/binding.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

// Each run adds to these.
struct RunCounts {
  int64_t kernels[backend::kMostDevices] = {};
  int64_t batches = 0;  // of the kernels on the CPU: calls that were made together
  int64_t copies = 0;
  int64_t copied_bytes[backend::kMostDevices] = {};  // by destination
  int64_t arena_bytes = 0;
#define GROUP(name, title)
#define COUNTER(group, key, field, text) int64_t field = 0;
#define FIGURE(field, title) int64_t field = 0;
#include "graph/run/run_counts.def"
#undef FIGURE
#undef COUNTER
#undef GROUP
};

// When a run's instructions began and ended: by the accelerator's virtual clock, if it has one;
// else by the host's clock and the accelerator's timed events (device_timer.h). What could not be
// timed has an empty span at 0.
struct RunTimes {
  std::vector<Span> spans;  // per instruction
  double seconds = 0;       // of the whole
};

// Bytes on the host that the program at hand does not touch and a later one may read: they go to
// the accelerator while this one runs there, where it has the memory. Nothing is lost where that
// fails.
struct Uploads {
  struct Entry {
    Binding* binding;
    uint64_t bytes;
  };
  backend::DeviceIndex to = backend::kCpu;
  std::vector<Entry> entries;
  uint64_t most_bytes = UINT64_MAX;  // that the accelerator may hold then
};

}  // namespace hetero::graph
