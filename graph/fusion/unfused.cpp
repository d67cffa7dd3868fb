#include "graph/fusion/unfused.h"

#include <algorithm>

namespace hetero::graph {

Result<void*> UnfusedMemory::of(const Graph& graph, BufferId buffer, backend::Device& cpu) {
  for (const auto& [owner, block] : blocks_) {
    if (owner == buffer) return block.data();
  }
  Result<backend::Block> block = cpu.allocate(graph.buffers[buffer].bytes);
  if (!block.ok()) return block.status();
  return blocks_.emplace_back(buffer, std::move(block.value())).second.data();
}

Status UnfusedMemory::resolve(const Graph& graph, const FusedGroup& group, void* const* operands, const Node& member,
                              backend::Device& cpu, void** data) {
  for (int i = 0; i < member.operand_count; ++i) {
    const BufferId buffer = graph.operands_of(member)[i].buffer;
    const auto known = std::ranges::find(group.operands, buffer, &GroupOperand::buffer);
    if (known != group.operands.end()) {
      data[i] = operands[known - group.operands.begin()];
      continue;
    }
    Result<void*> memory = of(graph, buffer, cpu);
    if (!memory.ok()) return memory.status();
    data[i] = memory.value();
  }
  return Status();
}

}  // namespace hetero::graph
