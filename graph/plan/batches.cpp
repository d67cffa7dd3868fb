// Batches: calls that read the same operand and run together, such as the products of one input
// with the weights of Q, K and V, or of a gate and what it lets through.
//
// A call moves forward to the place of the first of its batch. Nothing in between may have to come
// before it, and its results, which exist for longer then, must be small: a large call has nothing
// to gain.

#include <algorithm>

#include "graph/plan/passes.h"

namespace hetero::graph {
namespace {

constexpr uint32_t kReach = 64;          // instructions that a call may move across
constexpr int64_t kMostBytes = 1 << 20;  // of a call's results

// Whether the results of a call are small.
bool is_small(const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  const Operand* const operands = graph.operands_of(node);
  for (int i = 0; i < node.operand_count; ++i) {
    const Window& window = (*graph.windows)[operands[i].window];
    if (operands[i].writes()) bytes += window.numel * dtype_bytes(window.dtype);
  }
  return bytes <= kMostBytes;
}

class Joiner {
 public:
  Joiner(const Graph& graph, Plan& plan, Scratch& scratch) : graph_(graph), plan_(plan), taken_(scratch.taken) {}

  void run() {
    plan_.batches.clear();
    taken_.assign(plan_.program.size(), 0);
    for (uint32_t p = 0; p < plan_.program.size(); ++p) {
      if (taken_[p] == 0 && can_join(plan_.program[p])) gather(p);
    }
    std::erase_if(plan_.program, [](const Instruction& instruction) { return instruction.index == kMoved; });
  }

 private:
  static constexpr uint32_t kMoved = UINT32_MAX;

  const Node& node(const Instruction& instruction) const { return graph_.nodes[instruction.index]; }

  bool can_join(const Instruction& instruction) const {
    if (!instruction.is_call()) return false;
    return op_table()[node(instruction).op].run_together != nullptr && is_small(graph_, node(instruction));
  }

  const Operand& shared_operand(const Instruction& instruction) const {
    return graph_.operands_of(node(instruction))[op_table()[node(instruction).op].shared_operand];
  }

  bool belong_together(const Instruction& a, const Instruction& b) const {
    if (op_table()[node(a).op].run_together != op_table()[node(b).op].run_together) return false;
    const Operand &x = shared_operand(a), &y = shared_operand(b);
    return x.buffer == y.buffer && x.window == y.window && x.bits == y.bits;
  }

  void gather(uint32_t first) {
    std::vector<Instruction> calls;
    const auto end = static_cast<uint32_t>(std::min<size_t>(plan_.program.size(), first + size_t{kReach}));
    for (uint32_t p = first + 1; p < end && calls.size() < kMaxBatch; ++p) {
      const Instruction& other = plan_.program[p];
      if (taken_[p] != 0 || !can_join(other) || !belong_together(plan_.program[first], other)) continue;
      if (!can_move(p, first, calls)) continue;
      if (calls.empty()) calls.push_back(plan_.program[first]);
      calls.push_back(other);
      taken_[p] = 1;
    }
    if (calls.empty()) return;
    for (uint32_t p = first + 1; p < end; ++p) {
      if (taken_[p] == 1) plan_.program[p].index = kMoved;
      taken_[p] = taken_[p] != 0 ? 2 : 0;
    }
    const auto number = static_cast<uint32_t>(plan_.batches.size());
    plan_.program[first] = Instruction::batch(plan_.program[first].queue, number);
    plan_.batches.push_back(std::move(calls));
  }

  bool can_move(uint32_t from, uint32_t to, const std::vector<Instruction>& calls) const {
    const Node& moved = node(plan_.program[from]);
    for (uint32_t p = to; p < from; ++p) {
      if (taken_[p] != 0) continue;  // before `to`, or among the calls
      bool ordered = false;
      for_each_node(plan_, plan_.program[p],
                    [&](uint32_t n) { ordered = ordered || is_ordered(graph_.nodes[n], moved); });
      if (ordered) return false;
    }
    return std::ranges::none_of(calls, [&](const Instruction& call) { return is_ordered(node(call), moved); });
  }

  bool is_ordered(const Node& a, const Node& b) const {
    const Operand* const of_a = graph_.operands_of(a);
    const Operand* const of_b = graph_.operands_of(b);
    for (int i = 0; i < a.operand_count; ++i) {
      for (int j = 0; j < b.operand_count; ++j) {
        if (conflicts(*graph_.windows, of_a[i], of_b[j])) return true;
      }
    }
    return false;
  }

  const Graph& graph_;
  Plan& plan_;
  std::vector<uint8_t>& taken_;  // per instruction: 1 by the batch at hand, 2 by an earlier one
};

}  // namespace

void join_calls(const Graph& graph, Plan& plan, Scratch& scratch) { Joiner(graph, plan, scratch).run(); }

bool are_batches_small(const Graph& graph, const Plan& plan) {
  return std::ranges::all_of(plan.batches, [&](const std::vector<Instruction>& calls) {
    return std::ranges::all_of(calls,
                               [&](const Instruction& call) { return is_small(graph, graph.nodes[call.index]); });
  });
}

}  // namespace hetero::graph
