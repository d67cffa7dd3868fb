#include "graph/ir/follower.h"

#include <algorithm>
#include <span>

namespace hetero::graph {
namespace {

// The node's last operand, where it is the only one that it writes, and all of its buffer.
const Operand* result_of(const Graph& graph, const Node& node) {
  const std::span operands(graph.operands_of(node), node.operand_count);
  if (operands.empty() || operands.back().access != Access::kDefine) return nullptr;
  if (!std::ranges::none_of(operands.first(operands.size() - 1), [](const Operand& it) { return it.writes(); })) {
    return nullptr;
  }
  const Operand& result = operands.back();
  const Window& window = (*graph.windows)[result.window];
  const auto bytes = static_cast<uint64_t>(window.numel * dtype_bytes(window.dtype));
  return window.offset == 0 && bytes == graph.buffers[result.buffer].bytes && bytes > 0 ? &result : nullptr;
}

}  // namespace

bool has_follower(const Graph& graph, const Instructions& instructions, uint32_t position) {
  if (position + 1 >= instructions.program.size()) return false;
  const Instruction &call = instructions.program[position], &next = instructions.program[position + 1];
  if (!call.is_call() || !next.is_group() || call.queue != kHostQueue || next.queue != kHostQueue) return false;
  const Node& node = graph.nodes[call.index];
  const FusedGroup& group = instructions.groups[next.index];
  if (!op_table()[node.op].leads || group.has_checks()) return false;
  const Operand* const result = result_of(graph, node);
  if (result == nullptr) return false;
  const std::span operands(graph.operands_of(node), node.operand_count);
  const auto reads = [&](BufferId buffer) {
    return std::ranges::any_of(operands, [&](const Operand& it) { return it.reads() && it.buffer == buffer; });
  };
  int64_t times = 0;
  for (const GroupOperand& operand : group.operands) {
    if (operand.buffer == result->buffer) {
      times += operand.loads ? 1 : 2;
    } else if (operand.stores && (operand.loads || reads(operand.buffer))) {
      return false;
    }
  }
  return times == 1;
}

uint16_t followed_operand(const Graph& graph, const Instructions& instructions, uint32_t position) {
  const Node& node = graph.nodes[instructions.program[position].index];
  const BufferId result = graph.operands_of(node)[node.operand_count - 1].buffer;
  const std::vector<GroupOperand>& operands = instructions.groups[instructions.program[position + 1].index].operands;
  return static_cast<uint16_t>(std::ranges::find(operands, result, &GroupOperand::buffer) - operands.begin());
}

}  // namespace hetero::graph
