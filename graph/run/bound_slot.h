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
#include <optional>
#include <vector>

#include "backend/device/device.h"
#include "graph/run/segment_recorder.h"

namespace hetero::graph {

class BoundProgram;

struct BoundStep {
  Instruction instruction;
  uint32_t position;  // in the program
  uint32_t call;      // the first of its calls
  // Of calls. Of a copy: of those that are one transfer, the first of them; 0 of the others.
  uint32_t count;
  uint32_t entry;    // the first of its addresses in a slot's table
  uint32_t entries;  // how many
  double seconds;    // by the device's own figures
  // Of a call whose result's parts the next step, a group, may use as they are made.
  bool leads = false;
  uint16_t result = 0;        // the group's operand
  bool result_wanted = true;  // by others than the group
};

struct BoundSlot final : SegmentRecorder::Owner {
  // What the host does next: a step, or the segment that begins with it.
  struct Item {
    const BoundStep* step;
    const SegmentRecorder::Recording* recording;
  };

  explicit BoundSlot(BoundProgram& owner) : program(owner) {}

  // bound_segments.cpp. What runs of a segment sees nothing of the slot's table.
  void run_launch(uint32_t position, void* const* addresses) override;
  std::span<void* const> addresses_of(uint32_t position) const override;
  Result<std::unique_ptr<backend::Segment>> record(QueueId queue, std::span<Launch> launches) override;

  BoundProgram& program;
  std::vector<void*> table;
  std::vector<void*> on_device;      // the same, as tasks of a device see it; written by them
  std::vector<Launch> launches;      // per step
  std::vector<backend::Task> tasks;  // of these
  std::vector<Item> schedule;
  std::optional<SegmentRecorder> segments;
  std::array<std::unique_ptr<backend::Event>, kMaxQueues> ended;
  bool ran = false;         // `ended` was recorded
  double worker_ended = 0;  // virtual: when the CPU's worker queue was done

  std::atomic<bool> failed{false};
  std::mutex mutex;  // guards `failure`
  Status failure;
};

}  // namespace hetero::graph
