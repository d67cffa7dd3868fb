// Placement: which device runs each node, and why.
//
// A greedy walk in program order, after the list-scheduling habit of deciding a node when its
// inputs are decided:
//   1. Keep for each buffer the devices that would hold valid bytes at this point.
//   2. What the user asked for, and what the accelerator cannot run, is settled.
//   3. Operators that only move data (indexing, copies) and unclassified ones go where most of
//      their bytes are.
//   4. The others go to the accelerator, as their class prefers; except light work on bytes that
//      lie on the CPU when a roofline guess (the larger of arithmetic and traffic) says the CPU has
//      done it before the accelerator would have started.
//   5. A node that would bring more bytes to the accelerator than the budget has left stays on the
//      CPU.
// What things take is guessed by graph/cost.h.

#include <algorithm>

#include "graph/cost.h"
#include "graph/passes/passes.h"

namespace hetero::graph {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr uint8_t bit(backend::DeviceIndex device) { return static_cast<uint8_t>(1u << device); }

// Of a node, where the placement so far has left its operands.
struct Residents {
  double bytes_on_cpu = 0;  // valid there only
  double bytes_on_accelerator = 0;
};

class Placer {
 public:
  Placer(const Graph& graph, const PlanOptions& options, uint64_t budget, Scratch& scratch)
      : graph_(graph), costs_(options), budget_(budget), scratch_(scratch) {
    scratch_.valid.resize(graph.buffers.size());
    scratch_.charged.resize(graph.buffers.size());
    for (size_t b = 0; b < graph.buffers.size(); ++b) {
      const Buffer& buffer = graph.buffers[b];
      scratch_.valid[b] = buffer.valid_on;
      scratch_.charged[b] = (buffer.valid_on & bit(kAccelerator)) != 0;
      if (scratch_.charged[b] && budget_ != kAnyBytes) budget_ -= std::min(budget_, buffer.bytes);
    }
  }

  Placement place(const Node& node) {
    const OpTraits& traits = op_table()[node.op];
    const Work work = work_of(graph_, node);
    const Residents residents = find_residents(node);
    Placement placement = decide(node, traits, work, residents);
    if (placement.device == kAccelerator && !charge(node)) {
      placement.device = kCpu;
      placement.reason = Reason::kNoMemory;
    }
    placement.predicted_seconds = static_cast<float>(seconds(work, residents, placement.device));
    move_bytes(node, placement.device);
    return placement;
  }

 private:
  Placement decide(const Node& node, const OpTraits& traits, const Work& work, const Residents& residents) const {
    if (!traits.on_accelerator) return {kCpu, Reason::kUnsupported};
    if (node.preference == Preference::kCpu) return {kCpu, Reason::kRequested};
    if (node.preference == Preference::kAccelerator) return {kAccelerator, Reason::kRequested};
    switch (traits.op_class) {
      case OpClass::kIndexing:
      case OpClass::kCopy:
      case OpClass::kOther:
        return {residents.bytes_on_accelerator > residents.bytes_on_cpu ? kAccelerator : kCpu, Reason::kFollowsData};
      case OpClass::kPointwise:
      case OpClass::kReduction:
      case OpClass::kRandom:
        if (residents.bytes_on_accelerator == 0 && costs_.run_seconds(work, kCpu) < costs_.launch_seconds()) {
          return {kCpu, Reason::kTooSmall};
        }
        break;
      default:
        break;
    }
    return {kAccelerator, Reason::kOpClass};
  }

  Residents find_residents(const Node& node) const {
    Residents residents;
    const Operand* const operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      const double bytes = bytes_seen((*graph_.windows)[operands[i].window]);
      const uint8_t valid = scratch_.valid[operands[i].buffer];
      if (valid == bit(kCpu)) residents.bytes_on_cpu += bytes;
      if (valid == bit(kAccelerator)) residents.bytes_on_accelerator += bytes;
    }
    return residents;
  }

  // With the copies that it needs.
  double seconds(const Work& work, const Residents& residents, backend::DeviceIndex device) const {
    const double moved = device == kCpu ? residents.bytes_on_accelerator : residents.bytes_on_cpu;
    return costs_.run_seconds(work, device) + costs_.copy_seconds(moved);
  }

  // Takes the node's buffers out of the budget; false where they do not fit.
  bool charge(const Node& node) {
    if (budget_ == kAnyBytes) return true;
    uint64_t bytes = 0;
    const Operand* operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      const BufferId b = operands[i].buffer;
      if (!scratch_.charged[b]) bytes += SliceAllocator::round_up(graph_.buffers[b].bytes);
    }
    if (bytes > budget_) return false;
    budget_ -= bytes;
    for (int i = 0; i < node.operand_count; ++i) scratch_.charged[operands[i].buffer] = 1;
    return true;
  }

  void move_bytes(const Node& node, backend::DeviceIndex device) {
    const Operand* operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      scratch_.valid[operands[i].buffer] |= bit(device);
    }
    for (int i = 0; i < node.operand_count; ++i) {
      if (operands[i].writes()) scratch_.valid[operands[i].buffer] = bit(device);
    }
  }

  const Graph& graph_;
  const CostModel costs_;
  uint64_t budget_;
  Scratch& scratch_;
};

}  // namespace

void place_nodes(const Graph& graph, const PlanOptions& options, uint64_t accelerator_bytes, Plan& plan,
                 Scratch& scratch) {
  plan.placements.assign(graph.nodes.size(), Placement{});
  if (host_only(options)) return;
  Placer placer(graph, options, accelerator_bytes, scratch);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (plan.live[n]) plan.placements[n] = placer.place(graph.nodes[n]);
  }
}

}  // namespace hetero::graph
