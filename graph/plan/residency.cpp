// Residency: which buffers have their place on an accelerator throughout, where it cannot hold all
// of them.
//
// What has no place is streamed: copied in before it is used, and gone afterwards. The copies take
// max(bytes / bandwidth) beside the work, no matter which buffers they are, provided that the copy
// queue never stands still. So what matters is how the streamed ones are spread:
//
//   1. Measure what the program needs beside what it could hold (temporaries, and what comes and
//      goes), with room for two more of the largest: three slots keep the copy queue busy while one
//      is in use (shared/research: layers that are streamed one after another cost up to 1.7 times
//      as much).
//   2. What lies on the accelerator already stays: plans do not move weights back and forth.
//   3. Then what the program writes, since streaming it takes a copy each way.
//   4. Then evenly: along the program, with work and copies as the measure, as large a share of
//      each stretch is streamed as of the whole (error diffusion, J. Bresenham 1965).

#include <algorithm>

#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

using backend::contains;
using backend::DeviceIndex;

struct Unit {
  BufferId buffer;
  uint64_t bytes;
  double at;     // seconds of work and copies from the beginning
  bool written;  // by the accelerator
};

// For one accelerator.
class Chooser {
 public:
  Chooser(const Graph& graph, const CostModel& costs, DeviceIndex device, uint64_t limit, const Plan& plan,
          Scratch& scratch)
      : graph_(graph), costs_(costs), device_(device), limit_(limit), plan_(plan), scratch_(scratch) {}

  // REQUIRES: scratch.peak_bytes is that of a program without a limit.
  void run() {
    find_units();
    if (units_.empty()) return;
    uint64_t largest = 0;
    for (const Unit& unit : units_) largest = std::max(largest, unit.bytes);
    // What lies there already is part of the peak, and chosen from the same room.
    uint64_t there = 0;
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      if (contains(graph_.buffers[b].valid_on, device_)) there += SliceAllocator::round_up(graph_.buffers[b].bytes);
    }
    const uint64_t needed = scratch_.peak_bytes[device_] - there + 2 * largest;
    room_ = limit_ > needed ? limit_ - needed : 0;
    keep([this](const Unit& unit) { return contains(graph_.buffers[unit.buffer].valid_on, device_); });
    keep([](const Unit& unit) { return unit.written; });
    spread();
  }

 private:
  void find_units() {
    std::vector<uint32_t> unit_of(graph_.buffers.size(), UINT32_MAX);
    double at = 0;
    const TaskGraph& tasks = scratch_.tasks;
    for (const uint32_t t : scratch_.order) {
      const Task& task = tasks.tasks[t];
      if (task.device_in(plan_) != device_) continue;
      at += task.seconds[device_];
      for (const Use* use = tasks.begin(task); use != tasks.end(task); ++use) {
        const Buffer& buffer = graph_.buffers[use->buffer];
        if (!survives(buffer) || !use->in_memory()) continue;
        uint32_t& unit = unit_of[use->buffer];
        if (unit == UINT32_MAX) {
          unit = static_cast<uint32_t>(units_.size());
          units_.push_back({use->buffer, SliceAllocator::round_up(buffer.bytes), at, false});
        }
        units_[unit].written |= use->writes;
      }
    }
  }

  template <typename Condition>
  void keep(Condition condition) {
    for (const Unit& unit : units_) {
      if (!is_resident(unit) && condition(unit) && unit.bytes <= room_) keep_one(unit);
    }
  }

  bool is_resident(const Unit& unit) const { return contains(scratch_.resident[unit.buffer], device_); }

  void keep_one(const Unit& unit) {
    scratch_.resident[unit.buffer] |= backend::only(device_);
    room_ -= unit.bytes;
  }

  void spread() {
    uint64_t rest = 0;
    for (const Unit& unit : units_) rest += is_resident(unit) ? 0 : unit.bytes;
    if (rest == 0) return;
    const double share = 1 - std::min(1.0, static_cast<double>(room_) / static_cast<double>(rest));
    double copied = 0;    // so far, if each had its share streamed
    double streamed = 0;  // bytes that are
    double total = units_.back().at;
    for (const Unit& unit : units_) {
      if (!is_resident(unit)) total += share * seconds_of(unit);
    }
    for (const Unit& unit : units_) {
      if (is_resident(unit)) continue;
      copied += share * seconds_of(unit);
      const double due = share * static_cast<double>(rest) * (unit.at + copied) / total;
      // As late as its share allows: the first are there when the program begins, and nothing is
      // left to do behind the last copy.
      if (unit.bytes <= room_ && streamed + static_cast<double>(unit.bytes) * (1 - 1e-6) > due) {
        keep_one(unit);
      } else {
        streamed += static_cast<double>(unit.bytes);
      }
    }
    // What is left for those that fit.
    keep([](const Unit&) { return true; });
  }

  double seconds_of(const Unit& unit) const {
    return costs_.copy_seconds(static_cast<double>(unit.bytes), backend::kCpu, device_);
  }

  const Graph& graph_;
  const CostModel& costs_;
  const DeviceIndex device_;
  const uint64_t limit_;
  const Plan& plan_;
  Scratch& scratch_;
  std::vector<Unit> units_;  // what outlives the program, by first use
  uint64_t room_ = 0;
};

}  // namespace

void choose_residents(const Graph& graph, const PlanOptions& options, const Limits& limits, Plan& plan,
                      Scratch& scratch) {
  const CostModel costs(options);
  scratch.resident.assign(graph.buffers.size(), 0);
  insert_copies(graph, options.machine, limits_of(kNoLimit), plan, scratch);
  for (DeviceIndex d = 1; d < options.machine.size(); ++d) Chooser(graph, costs, d, limits[d], plan, scratch).run();
}

}  // namespace hetero::graph
