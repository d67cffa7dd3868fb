// Memory plan: where each buffer's bytes lie on each device, and how large the arenas are.
//
//   1. Find the first and the last instruction that touches each buffer on each device, and choose
//      a home: bytes that exist before or after the program are the storage's own (kBound); what a
//      kernel brings stays in the kernel's memory (kBrought); the rest goes to the device's arena.
//   2. Where one queue alone touches an arena, as on the CPU alone, pack it with all lifetimes
//      known (interval_packing.h). An arena of the CPU is held from the first instruction to the
//      last, beside the results; where that would be more than op-by-op execution has at its worst
//      moment (a training step: activations go as gradients come), large temporaries get blocks of
//      their own instead (kOwned), from first to last use.
//   3. Where several queues touch an arena, walk the program: an instruction takes slices for what
//      it touches first and gives back those of what it touches last; bytes that leave and come
//      back have a slice for each stay. A slice given back remembers who touched it, and only an
//      instruction that comes after all of them takes it; near the end of the accelerator's memory
//      an instruction is rather made to wait for them.
// Memory outside an arena is released by the host as it passes the last use, so only bytes that
// neither a copy queue nor the worker queue touches qualify.

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "graph/ir/follower.h"
#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

using backend::DeviceIndex;
using backend::kCpu;

class MemoryPlanner {
 public:
  MemoryPlanner(const Graph& graph, const PlanOptions& options, bool keep, Plan& plan, Scratch& scratch)
      : graph_(graph), options_(options), keep_(keep), plan_(plan), scratch_(scratch) {}

  void run_on_host() {
    const uint64_t most = unplanned_peak();
    if (options_.fixed_memory) return pack_host(UINT64_MAX);
    for (const uint64_t largest : {UINT64_MAX, options_.own_block_bytes, options_.least_own_block_bytes}) {
      pack_host(largest);
      if (planned_peak() <= most) break;
    }
  }

  bool run() {
    const size_t residences = graph_.buffers.size() * plan_.device_count;
    scratch_.slices.assign(residences, 0);
    scratch_.users.assign(residences, {});
    scratch_.stay.assign(residences, 0);
    largest_slice_ = options_.fixed_memory ? UINT64_MAX : options_.own_block_bytes;
    find_lifetimes();
    bool fits = true;
    Limits rooms;
    for (DeviceIndex d = 0; d < plan_.device_count; ++d) {
      const uint64_t capacity = d == kCpu || options_.machine[d].bytes == 0 ? UINT64_MAX : options_.machine[d].bytes;
      const uint64_t bound = capacity == UINT64_MAX ? 0 : bound_bytes(d);
      fits = fits && bound <= capacity;
      rooms[d] = capacity - std::min(bound, capacity);
      scratch_.arenas[d].reset(true, rooms[d]);
    }
    std::ranges::fill(live_, 0);
    std::ranges::fill(plan_.arena_lower_bound, 0);
    std::ranges::fill(scratch_.stay, 0);
    find_shared_arenas();
    assign_slices();
    for (DeviceIndex d = 0; d < plan_.device_count; ++d) {
      plan_.arena_bytes[d] = scratch_.arenas[d].high_water();
      if (!shared_arena_[d]) pack(d, keep_);
      fits = fits && plan_.arena_bytes[d] <= rooms[d];
    }
    return fits;
  }

 private:
  // Temporaries of fewer than `largest` bytes go to the arena.
  void pack_host(uint64_t largest) {
    largest_slice_ = largest;
    find_lifetimes();
    if (options_.fixed_memory) keep_for_followers();
    std::ranges::fill(plan_.arena_bytes, 0);
    std::ranges::fill(plan_.arena_lower_bound, 0);
    pack(kCpu, true);
  }

  // All lifetimes known. REQUIRES: one queue touches the device's arena.
  void pack(DeviceIndex device, bool searches) {
    scratch_.intervals.clear();
    scratch_.packed.clear();
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const Residence& residence = plan_.residence(b, device);
      if (residence.home != Home::kArena) continue;
      // Nothing has an address, too.
      const uint64_t bytes = std::max<uint64_t>(1, graph_.buffers[b].bytes);
      scratch_.intervals.push_back({residence.first, residence.last, bytes});
      scratch_.packed.push_back(b);
    }
    std::optional<int64_t> effort;  // the usual one
    if (!options_.thorough || !searches) {
      effort = 0;
    } else if (options_.effort > 1) {
      effort = IntervalPacking::kMostEffort * options_.effort;
    }
    scratch_.packing.pack(scratch_.intervals, SliceAllocator::kAlignment, effort);
    for (size_t i = 0; i < scratch_.packed.size(); ++i) {
      plan_.residence(scratch_.packed[i], device).offset = scratch_.packing.offset(i);
    }
    plan_.arena_bytes[device] = scratch_.packing.total_bytes();
    plan_.arena_lower_bound[device] = scratch_.packing.lower_bound();
  }

  // The most bytes at once, beyond those that stay throughout, when the program runs as planned.
  uint64_t planned_peak() {
    begin_peak(plan_.program.size());
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const Residence& residence = plan_.residence(b, kCpu);
      if (residence.home != Home::kArena && residence.home != Home::kNone) {
        add_lifetime(graph_.buffers[b], residence.first, residence.last);
      }
    }
    return plan_.arena_bytes[kCpu] + end_peak();
  }

  // The same when every live node runs by itself, in program order, and memory is freed after the
  // last use.
  uint64_t unplanned_peak() {
    scratch_.first_use.assign(graph_.buffers.size(), UINT32_MAX);
    scratch_.last_use.assign(graph_.buffers.size(), 0);
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!plan_.live[n]) continue;
      const Operand* const operands = graph_.operands_of(graph_.nodes[n]);
      for (int i = 0; i < graph_.nodes[n].operand_count; ++i) {
        const BufferId buffer = operands[i].buffer;
        scratch_.first_use[buffer] = std::min(scratch_.first_use[buffer], n);
        scratch_.last_use[buffer] = n;
      }
    }
    begin_peak(graph_.nodes.size());
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      if (scratch_.first_use[b] != UINT32_MAX) {
        add_lifetime(graph_.buffers[b], scratch_.first_use[b], scratch_.last_use[b]);
      }
    }
    return end_peak();
  }

  void begin_peak(size_t positions) { scratch_.deltas.assign(positions + 1, 0); }

  void add_lifetime(const Buffer& buffer, uint32_t first, uint32_t last) {
    const auto bytes = static_cast<int64_t>(SliceAllocator::round_up(buffer.bytes));
    const bool before = buffer.valid_on != 0;
    if (before && buffer.escapes) return;
    scratch_.deltas[before ? 0 : first] += bytes;
    if (!buffer.escapes) scratch_.deltas[last + 1] -= bytes;
  }

  uint64_t end_peak() const {
    int64_t live = 0;
    int64_t most = 0;
    for (const int64_t delta : scratch_.deltas) {
      live += delta;
      most = std::max(most, live);
    }
    return static_cast<uint64_t>(most);
  }

  void find_lifetimes() {
    plan_.residences.assign(graph_.buffers.size() * plan_.device_count, {});
    for (uint32_t i = 0; i < plan_.program.size(); ++i) {
      const Instruction& instruction = plan_.program[i];
      if (instruction.is_group()) {
        const DeviceIndex device = device_of(instruction.queue);
        for (const GroupOperand& o : plan_.groups[instruction.index].operands) touch_by_group(i, o.buffer, device);
      } else if (instruction.computes()) {
        for_each_call(plan_, instruction, [&](const Instruction& call) { touch_by_node(i, call); });
      } else {
        note_stay(instruction);
        for_each_touch(graph_, plan_, instruction,
                       [&](const TouchedBytes& touch) { touch_by_queue(i, touch.buffer, touch.device); });
      }
    }
  }

  // What follows a call may write before the call has read all.
  void keep_for_followers() {
    for (uint32_t i = 0; i < plan_.program.size(); ++i) {
      if (!has_follower(graph_, plan_, i)) continue;
      const Node& node = graph_.nodes[plan_.program[i].index];
      for (const Operand& operand : std::span(graph_.operands_of(node), node.operand_count)) {
        Residence& residence = plan_.residence(operand.buffer, kCpu);
        residence.last = std::max(residence.last, i + 1);
      }
    }
  }

  void touch_by_node(uint32_t i, const Instruction& instruction) {
    const Node& node = graph_.nodes[instruction.index];
    const DeviceIndex device = device_of(instruction.queue);
    const Operand* const first = graph_.operands_of(node);
    const Operand* const end = first + node.operand_count;
    if (instruction.queue == kWorkerQueue) {
      for (const Operand* o = first; o != end; ++o) touch_by_queue(i, o->buffer, device);
      return;
    }
    for (const Operand* o = first; o != end; ++o) {
      Residence& residence = stay_of(o->buffer, device);
      if (residence.home == Home::kNone) {
        residence.home = home_of(*o, node, device);
        residence.first = i;
      }
      residence.last = i;
    }
  }

  // Of what the bytes are in at this point of the walk.
  Residence& stay_of(BufferId buffer, DeviceIndex device) {
    // Plans for the CPU alone have no returns.
    if (plan_.returns.empty()) return plan_.residence(buffer, device);
    const uint32_t stay = scratch_.stay[plan_.place_of(buffer, device)];
    return stay == 0 ? plan_.residence(buffer, device) : plan_.returns[stay - 1].residence;
  }

  Home home_of(const Operand& operand, const Node& node, DeviceIndex device) const {
    if (!options_.fixed_memory && device == kCpu && operand.access == Access::kDefine &&
        op_table()[node.op].brings_memory) {
      return Home::kBrought;
    }
    return home_of(operand.buffer, device);
  }

  Home home_of(BufferId b, DeviceIndex device) const {
    const Buffer& buffer = graph_.buffers[b];
    if (survives(buffer)) return is_kept(b, device) ? Home::kBound : Home::kArena;
    return device == kCpu && buffer.bytes >= largest_slice_ ? Home::kOwned : Home::kArena;
  }

  // Whether a storage has memory of its own there.
  bool is_kept(BufferId b, DeviceIndex device) const {
    return keep_ || device == kCpu || backend::contains(scratch_.resident[b] | graph_.buffers[b].valid_on, device);
  }

  // A fused kernel writes into memory that it is given.
  void touch_by_group(uint32_t i, BufferId buffer, DeviceIndex device) {
    Residence& residence = stay_of(buffer, device);
    if (residence.home == Home::kNone) {
      residence.home = home_of(buffer, device);
      residence.first = i;
    }
    residence.last = i;
  }

  // By a copy or on the worker queue: when that has run, the host does not know without an event.
  void touch_by_queue(uint32_t i, BufferId buffer, DeviceIndex device) {
    Residence& residence = stay_of(buffer, device);
    if (residence.home == Home::kNone) residence.first = i;
    residence.last = i;
    if (!survives(graph_.buffers[buffer])) {
      residence.home = Home::kArena;
    } else if (residence.home == Home::kNone) {
      residence.home = home_of(buffer, device);
    }
  }

  // What lies on an accelerator beside its arena.
  uint64_t bound_bytes(DeviceIndex device) const {
    uint64_t bytes = 0;
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const bool there = backend::contains(graph_.buffers[b].valid_on, device);
      if (there || std::as_const(plan_).residence(b, device).home == Home::kBound) {
        bytes += SliceAllocator::round_up(graph_.buffers[b].bytes);
      }
    }
    return bytes;
  }

  // Those that a copy touches, and those of devices whose kernels are on several queues.
  void find_shared_arenas() {
    std::ranges::fill(shared_arena_, false);
    for (const Instruction& instruction : plan_.program) {
      shared_arena_[device_of(instruction.queue)] |= backend::is_side_compute(kind_of(instruction.queue));
      if (instruction.computes()) continue;
      for_each_touch(graph_, plan_, instruction, [&](const TouchedBytes& touch) {
        shared_arena_[touch.device] |= plan_.residence(touch.buffer, touch.device).home == Home::kArena;
      });
    }
  }

  // The copies of one transfer run at once: none takes what another gives back.
  void assign_slices() {
    for (uint32_t first = 0, end = 0; first < plan_.program.size(); first = end) {
      end = end_of_joined(scratch_, first);
      for (uint32_t i = first; i < end; ++i) {
        note_stay(plan_.program[i]);
        for_each_touch(graph_, plan_, plan_.program[i],
                       [&](const TouchedBytes& touch) { take(i, touch.buffer, touch.device); });
      }
      for (uint32_t i = first; i < end; ++i) {
        for_each_touch(graph_, plan_, plan_.program[i],
                       [&](const TouchedBytes& touch) { give_back(i, touch.buffer, touch.device); });
      }
    }
  }

  // A copy that brings bytes back begins their next stay.
  void note_stay(const Instruction& instruction) {
    if (instruction.stay == 0) return;
    scratch_.stay[plan_.place_of(instruction.index, instruction.to)] = instruction.stay;
  }

  void take(uint32_t i, BufferId buffer, DeviceIndex device) {
    Residence& residence = stay_of(buffer, device);
    if (residence.home != Home::kArena || !shared_arena_[device]) return;
    const size_t index = plan_.place_of(buffer, device);
    uint32_t& slice = scratch_.slices[index];
    if (residence.first != i || slice != 0) {
      scratch_.users[index][plan_.program[i].queue] = i + 1;
      return;
    }
    scratch_.users[index] = {};
    scratch_.users[index][plan_.program[i].queue] = i + 1;
    SliceAllocator& arena = scratch_.arenas[device];
    const uint32_t taken = arena.allocate(graph_.buffers[buffer].bytes, &scratch_.clocks[i], &scratch_.requirements[i]);
    slice = taken + 1;
    residence.offset = arena.offset(taken);
    live_[device] += arena.size(taken);
    plan_.arena_lower_bound[device] = std::max(plan_.arena_lower_bound[device], live_[device]);
  }

  void give_back(uint32_t i, BufferId buffer, DeviceIndex device) {
    const Residence& residence = stay_of(buffer, device);
    if (residence.last != i || residence.home != Home::kArena || !shared_arena_[device]) return;
    const size_t index = plan_.place_of(buffer, device);
    uint32_t& slice = scratch_.slices[index];
    if (slice == 0) return;
    SliceAllocator& arena = scratch_.arenas[device];
    live_[device] -= arena.size(slice - 1);
    arena.free(slice - 1, &scratch_.users[index]);
    slice = 0;
  }

  const Graph& graph_;
  const PlanOptions& options_;
  const bool keep_;  // on accelerators, what survives
  Plan& plan_;
  Scratch& scratch_;
  uint64_t largest_slice_ = 0;
  bool shared_arena_[backend::kMostDevices] = {};  // several queues touch it
  uint64_t live_[backend::kMostDevices] = {};
};

}  // namespace

void plan_host_memory(const Graph& graph, const PlanOptions& options, Plan& plan, Scratch& scratch) {
  MemoryPlanner(graph, options, true, plan, scratch).run_on_host();
}

bool plan_memory(const Graph& graph, const PlanOptions& options, bool keep, Plan& plan, Scratch& scratch) {
  return MemoryPlanner(graph, options, keep, plan, scratch).run();
}

}  // namespace hetero::graph
