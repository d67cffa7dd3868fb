#include "graph/optimize/rewrite.h"

#include <algorithm>
#include <utility>

namespace hetero::graph {
namespace {

// Operands and attributes of the others are moved together, as they are read back from a file.
void close_up(SavedProgram& program, const std::vector<uint8_t>& gone) {
  Graph& graph = program.graph;
  Graph left;
  std::vector<uint32_t> new_number(graph.nodes.size(), 0);
  left.windows = graph.windows;
  left.buffers = std::move(graph.buffers);
  std::vector<std::pair<uint64_t*, uint64_t>> moved;  // draws, and where they are then
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (gone[n] != 0) continue;
    Node node = graph.nodes[n];
    const Operand* const operands = graph.operands_of(node);
    node.first_operand = static_cast<uint32_t>(left.operands.size());
    left.operands.insert(left.operands.end(), operands, operands + node.operand_count);
    const auto attributes = graph.attributes.begin() + node.attribute_offset;
    const auto before = static_cast<uint32_t>(left.attributes.size());
    for (uint64_t& draw : program.draws) {
      if (node.has_attribute(draw)) moved.emplace_back(&draw, before + (draw - node.attribute_offset));
    }
    node.attribute_offset = before;
    left.attributes.insert(left.attributes.end(), attributes, attributes + node.attribute_bytes);
    new_number[n] = static_cast<uint32_t>(left.nodes.size());
    left.nodes.push_back(node);
  }
  for (const auto& [draw, place] : moved) *draw = place;
  const auto is_gone = [&](const auto& dynamic) { return gone[dynamic.node] != 0; };
  std::erase_if(program.dynamic.operands, is_gone);
  std::erase_if(program.dynamic.numbers, is_gone);
  for (DynamicSizes::OperandWindow& operand : program.dynamic.operands) operand.node = new_number[operand.node];
  for (DynamicSizes::Number& number : program.dynamic.numbers) number.node = new_number[number.node];
  graph = std::move(left);
}

void drop_unread(SavedProgram& program) {
  Graph& graph = program.graph;
  std::vector<uint8_t> wanted(graph.buffers.size(), 0);
  for (const Operand& operand : graph.operands) wanted[operand.buffer] = 1;
  for (const ProgramValue& output : program.outputs) wanted[output.buffer] = 1;
  for (const ProgramValue& input : program.inputs) wanted[input.buffer] = 1;
  std::erase_if(program.constants, [&](const ProgramConstant& constant) { return wanted[constant.buffer] == 0; });
  for (BufferId b = 0; b < wanted.size(); ++b) {
    if (wanted[b] == 0) graph.buffers[b] = {.bytes = 0, .valid_on = 0, .escapes = false};
  }
  std::erase_if(program.dynamic.buffers, [&](const auto& dynamic) { return wanted[dynamic.buffer] == 0; });
}

}  // namespace

bool draws(const SavedProgram& program, const Node& node) {
  return std::ranges::any_of(program.draws, [&](uint64_t draw) { return node.has_attribute(draw); });
}

std::vector<BufferUses> find_uses(const Graph& graph) {
  std::vector<BufferUses> all(graph.buffers.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Operand* const operands = graph.operands_of(graph.nodes[n]);
    for (int i = 0; i < graph.nodes[n].operand_count; ++i) {
      BufferUses& uses = all[operands[i].buffer];
      uses.reads += operands[i].reads() ? 1 : 0;
      if (operands[i].writes() && uses.writes++ == 0) uses.first_write = n;
    }
  }
  return all;
}

void drop_plan(SavedProgram& program) {
  program.plan.clear();
  program.plan_machine.clear();
}

void remove_nodes(SavedProgram& program, const std::vector<uint8_t>& gone) {
  close_up(program, gone);
  drop_unread(program);
  drop_plan(program);
}

}  // namespace hetero::graph
