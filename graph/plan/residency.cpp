// Residency: which buffers have their place on an accelerator throughout, where it cannot hold all
// of them.
//
// What has no place is streamed: copied in before it is used, and gone afterwards. The copies take
// max(bytes / bandwidth) beside the work, no matter which buffers they are, provided that the copy
// queue never stands still. So what matters is how the streamed ones are spread:
//
//   1. Measure what the program needs beside what it could hold (temporaries, and what comes and
//      goes), with room for two more of the largest that is streamed: three slots keep the copy
//      queue busy while one is in use (shared/research: layers that are streamed one after another
//      cost up to 1.7 times as much).
//   2. The few that are much larger than the others, such as a vocabulary's weight, stay where that
//      leaves more room than slots of their size would.
//   3. What lies on the accelerator already stays: plans do not move weights back and forth.
//   4. Then what the program writes, since streaming it takes a copy each way.
//   5. Then evenly: along the program, with work and copies as the measure, as large a share of
//      each stretch is streamed as of the whole (error diffusion, J. Bresenham 1965).

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

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

// A task's use of memory.
struct Moment {
  uint64_t temporaries = 0;     // alive
  std::vector<uint64_t> units;  // bytes of each that it uses
};

// For one accelerator.
class Chooser {
 public:
  Chooser(const Graph& graph, const CostModel& costs, DeviceIndex device, uint64_t limit, const Plan& plan,
          Scratch& scratch)
      : graph_(graph), costs_(costs), device_(device), limit_(limit), plan_(plan), scratch_(scratch) {}

  // Whether something stays because it is large. REQUIRES: scratch.peak_bytes is that of a program
  // without a limit.
  bool run(bool keeps_large) {
    find_units();
    if (units_.empty()) return false;
    // What lies there already is part of the peak, and chosen from the same room.
    uint64_t there = 0;
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      if (contains(graph_.buffers[b].valid_on, device_)) there += SliceAllocator::round_up(graph_.buffers[b].bytes);
    }
    const uint64_t others = scratch_.peak_bytes[device_] - there;
    const uint64_t largest = std::ranges::max(units_, {}, &Unit::bytes).bytes;
    const uint64_t slot = keeps_large ? choose_slot(others) : largest;
    const uint64_t needed = others_with(slot, others) + 2 * slot;
    room_ = limit_ > needed ? limit_ - needed : 0;
    keep([slot](const Unit& unit) { return unit.bytes > slot; });
    keep([this](const Unit& unit) { return contains(graph_.buffers[unit.buffer].valid_on, device_); });
    keep([](const Unit& unit) { return unit.written; });
    spread();
    return slot < largest;
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

  // The size of the largest unit that may be streamed. The few that are much larger than all others
  // stay if there is room: slots of their size would take more.
  uint64_t choose_slot(uint64_t others) {
    constexpr size_t kFew = 32;  // one of so many
    constexpr uint64_t kMuchLarger = 4;
    std::vector<uint64_t> sizes;
    for (const Unit& unit : units_) sizes.push_back(unit.bytes);
    std::ranges::sort(sizes, std::greater());
    uint64_t larger = 0;
    for (size_t i = 1; i < sizes.size() && i <= sizes.size() / kFew; ++i) {
      larger += sizes[i - 1];
      if (sizes[i] > sizes[i - 1] / kMuchLarger) continue;
      find_moments();
      return others_with(sizes[i], others) + larger + 2 * sizes[i] <= limit_ ? sizes[i] : sizes.front();
    }
    return sizes.front();
  }

  // What is needed beside residents where units larger than a slot are residents: these do not come
  // and go when they are used.
  uint64_t others_with(uint64_t slot, uint64_t others) const {
    uint64_t all = 0;
    uint64_t rest = 0;
    for (const Moment& moment : moments_) {
      uint64_t small = moment.temporaries;
      for (const uint64_t bytes : moment.units) small += bytes <= slot ? bytes : 0;
      all = std::max(all, std::accumulate(moment.units.begin(), moment.units.end(), moment.temporaries));
      rest = std::max(rest, small);
    }
    return others - std::min(others, all - rest);
  }

  // Per task of the device: which bytes it needs there at once.
  void find_moments() {
    constexpr size_t kNever = SIZE_MAX;
    std::vector<size_t> first(graph_.buffers.size(), kNever);
    std::vector<size_t> last(graph_.buffers.size(), 0);
    const TaskGraph& tasks = scratch_.tasks;
    for (const uint32_t t : scratch_.order) {
      const Task& task = tasks.tasks[t];
      if (task.device_in(plan_) != device_) continue;
      Moment& moment = moments_.emplace_back();
      for (const Use* use = tasks.begin(task); use != tasks.end(task); ++use) {
        if (!use->in_memory()) continue;
        if (survives(graph_.buffers[use->buffer])) {
          moment.units.push_back(SliceAllocator::round_up(graph_.buffers[use->buffer].bytes));
        } else {
          first[use->buffer] = std::min(first[use->buffer], moments_.size() - 1);
          last[use->buffer] = moments_.size() - 1;
        }
      }
    }
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      if (first[b] == kNever) continue;
      for (size_t m = first[b]; m <= last[b]; ++m) {
        moments_[m].temporaries += SliceAllocator::round_up(graph_.buffers[b].bytes);
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
  std::vector<Moment> moments_;
  uint64_t room_ = 0;
};

}  // namespace

bool choose_residents(const Graph& graph, const PlanOptions& options, const Limits& limits, bool keeps_large,
                      Plan& plan, Scratch& scratch) {
  const CostModel costs(options);
  scratch.resident.assign(graph.buffers.size(), 0);
  insert_copies(graph, options.machine, limits_of(kNoLimit), plan, scratch);
  bool kept = false;
  for (DeviceIndex d = 1; d < options.machine.size(); ++d) {
    kept |= Chooser(graph, costs, d, limits[d], plan, scratch).run(keeps_large);
  }
  return kept;
}

}  // namespace hetero::graph
