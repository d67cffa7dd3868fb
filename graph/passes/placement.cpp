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
// The guess ("Roofline", Williams et al. 2009) knows the operator's class and windows only.

#include <algorithm>
#include <cmath>

#include "graph/passes/passes.h"

namespace hetero::graph {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr uint8_t bit(backend::DeviceIndex device) { return static_cast<uint8_t>(1u << device); }

struct Work {
  double flops = 0;
  double bytes = 0;         // touched
  double bytes_on_cpu = 0;  // of the operands, valid on the CPU only
  double bytes_on_accelerator = 0;
};

double fallback(double value, double otherwise) { return value > 0 ? value : otherwise; }

class Placer {
 public:
  Placer(const Graph& graph, const PlanOptions& options, uint64_t budget, Scratch& scratch)
      : graph_(graph), options_(options), budget_(budget), scratch_(scratch) {
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
    const Work work = measure(node, traits.op_class);
    Placement placement = decide(node, traits, work);
    if (placement.device == kAccelerator && !charge(node)) {
      placement.device = kCpu;
      placement.reason = Reason::kNoMemory;
    }
    placement.predicted_seconds = static_cast<float>(seconds(work, placement.device));
    move_bytes(node, placement.device);
    return placement;
  }

 private:
  Placement decide(const Node& node, const OpTraits& traits, const Work& work) const {
    if (!traits.on_accelerator) return {kCpu, Reason::kUnsupported};
    if (node.preference == Preference::kCpu) return {kCpu, Reason::kRequested};
    if (node.preference == Preference::kAccelerator) return {kAccelerator, Reason::kRequested};
    switch (traits.op_class) {
      case OpClass::kIndexing:
      case OpClass::kCopy:
      case OpClass::kOther:
        return {work.bytes_on_accelerator > work.bytes_on_cpu ? kAccelerator : kCpu, Reason::kFollowsData};
      case OpClass::kPointwise:
      case OpClass::kReduction:
      case OpClass::kRandom:
        if (work.bytes_on_accelerator == 0 && seconds(work, kCpu) < launch_seconds()) {
          return {kCpu, Reason::kTooSmall};
        }
        break;
      default:
        break;
    }
    return {kAccelerator, Reason::kOpClass};
  }

  Work measure(const Node& node, OpClass op_class) const {
    Work work;
    const Window* read[3] = {};
    int reads = 0;
    const Window* written = nullptr;
    const Operand* operands = graph_.operands_of(node);
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = operands[i];
      const Window& window = (*graph_.windows)[operand.window];
      const double bytes = static_cast<double>(window.numel) * dtype_bytes(window.dtype);
      work.bytes += bytes;
      const uint8_t valid = scratch_.valid[operand.buffer];
      if (valid == bit(kCpu)) work.bytes_on_cpu += bytes;
      if (valid == bit(kAccelerator)) work.bytes_on_accelerator += bytes;
      if (operand.reads() && reads < 3) read[reads++] = &window;
      if (operand.writes() && written == nullptr) written = &window;
    }
    work.flops = work.bytes / 4;
    if (written != nullptr && reads >= 2) work.flops = flops(op_class, *written, read, reads);
    return work;
  }

  static double flops(OpClass op_class, const Window& written, const Window* const* read, int reads) {
    const auto size = [](const Window& w) { return static_cast<double>(w.numel); };
    const double out = size(written);
    switch (op_class) {
      case OpClass::kMatmul: {
        // With A of m*k, B of k*n and C of m*n elements, |A||B|/|C| is k squared. A bias comes
        // first.
        const double a = size(*read[reads - 2]);
        const double b = size(*read[reads - 1]);
        return out > 0 ? 2 * out * std::sqrt(a * b / out) : 0;
      }
      case OpClass::kConvolution: {
        const Window& weight = *read[1];
        return weight.rank > 0 && weight.dims[0] > 0 ? 2 * out * size(weight) / weight.dims[0] : out;
      }
      case OpClass::kAttention: {
        const Window& key = *read[1];
        return key.rank >= 2 ? 4 * out * static_cast<double>(key.dims[key.rank - 2]) : out;
      }
      case OpClass::kNormalization:
        return 8 * out;
      default:
        return out;
    }
  }

  double launch_seconds() const { return fallback(options_.accelerator.launch_latency, 5e-6); }

  double seconds(const Work& work, backend::DeviceIndex device) const {
    const bool on_cpu = device == kCpu;
    const backend::Capabilities& c = on_cpu ? options_.cpu : options_.accelerator;
    const double arithmetic = work.flops / fallback(c.flops, on_cpu ? 1e11 : 1e13);
    const double traffic = work.bytes / fallback(c.memory_bandwidth, on_cpu ? 2e10 : 1e12);
    const double moved = on_cpu ? work.bytes_on_accelerator : work.bytes_on_cpu;
    const double copies = moved / fallback(options_.accelerator.copy_bandwidth, 1e10);
    return std::max(arithmetic, traffic) + copies + (on_cpu ? 0 : launch_seconds());
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
  const PlanOptions& options_;
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
