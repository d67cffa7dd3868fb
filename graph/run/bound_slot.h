// What a BoundProgram knows of its instructions and its slots. Only bound_program.cpp and
// bound_segments.cpp include it.
//
// Thread safety: a Step is immutable once bound. A Slot belongs to the thread that runs or rebinds
// it, unless stated otherwise.

#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/device/device.h"
#include "graph/ir/plan.h"

namespace hetero::graph {

class BoundProgram;
struct BoundSlot;

struct BoundStep {
  Instruction::Kind kind;
  QueueId queue;
  uint32_t index;  // kRun and kBody: the call. kBatch: the first call. kFused: the group. kRecord and kWait: the event.
  // kBatch: of calls. kCopy: of the copies that are one transfer with this one, the first of them; 0 of the others.
  uint32_t count;
  uint32_t entry;     // the first of its addresses in a slot's table
  uint32_t entries;   // how many
  uint32_t position;  // in the program
  size_t bytes;       // kCopy
  double seconds;     // by the device's own figures
  bool in_run;        // it may become a part of a segment (BoundProgram::runs_)
};

// A step that a queue runs, with the addresses of its operands: those of the slot's table, or those that a recording keeps.
struct BoundTask {
  BoundProgram* program;
  BoundSlot* slot;
  const BoundStep* step;
  void* const* addresses;
};

// A part of a run of one slot, and the segment that a queue has recorded of it. As on a GPU, whose graphs hold the addresses with which they were recorded,
// what runs of a segment sees nothing of the slot's table.
struct BoundRecording {
  enum class State : uint8_t { kWaiting, kRecorded, kRefused };

  State state = State::kWaiting;
  std::vector<uint32_t> steps;
  std::vector<void*> addresses;
  std::vector<BoundTask> tasks;
  std::vector<backend::Task> launches;
  std::unique_ptr<backend::Segment> segment;
};

struct BoundSlot {
  // What the host does next: a step, or the segment that begins with it.
  struct Item {
    const BoundStep* step;
    BoundRecording* recording;
  };
  // Changes of a step's addresses.
  struct Rebinds {
    uint64_t after = 0;  // the number of runs before the last one
    uint8_t count = 0;   // between how many runs there were some, up to kMovingRebinds
  };

  std::vector<void*> table;
  std::vector<void*> on_device;  // the same, as tasks of a device see it; written by them
  std::vector<BoundTask> tasks;  // per step
  std::vector<Item> schedule;
  std::array<std::unique_ptr<backend::Event>, kMaxQueues> ended;
  bool ran = false;  // `ended` was recorded

  // Of segments (bound_segments.cpp).
  std::vector<std::unique_ptr<BoundRecording>> recordings;
  std::vector<Rebinds> rebinds;  // per step
  bool changed = false;          // `schedule` is not that of `recordings`
  uint64_t runs = 0;
  uint64_t settled_runs = 0;  // since addresses were changed on which segments depend
  uint64_t record_at = 0;     // the number of settled runs before which there is nothing to record
  uint64_t settings = 0;      // kernel_settings() of the recordings

  std::atomic<bool> failed{false};
  std::mutex mutex;  // guards `failure`
  Status failure;
};

}  // namespace hetero::graph
