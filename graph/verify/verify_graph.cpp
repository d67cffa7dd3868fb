#include <string>

#include "graph/verify/usage.h"
#include "graph/verify/verify.h"

namespace hetero::graph {
namespace {

using backend::kCpu;

Status check_operand(const Graph& graph, const Operand& operand) {
  if (operand.buffer >= graph.buffers.size()) return violation("an operand's buffer is not there");
  if (operand.window >= graph.windows->size()) return violation("an operand's window is not there");
  const Window& window = (*graph.windows)[operand.window];
  const auto bytes = static_cast<int64_t>(graph.buffers[operand.buffer].bytes);
  if (window.numel > 0 && (window.first_byte < 0 || window.last_byte > bytes)) {
    return violation("a window reaches outside " + name("b", operand.buffer));
  }
  return Status();
}

// What takes another's block leaves that one's bytes as they are: nobody else sees them, and nobody
// changes either but who makes it.
Status check_takers(const Graph& graph) {
  std::vector<uint32_t> writers(graph.buffers.size());
  std::vector<uint8_t> taken(graph.buffers.size());
  for (const Operand& operand : graph.operands) writers[operand.buffer] += operand.writes();
  for (BufferId b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& taker = graph.buffers[b];
    if (taker.takes == kNoBuffer) continue;
    if (taker.takes >= graph.buffers.size()) return violation(name("b", b) + " takes a buffer that is not there");
    const Buffer& from = graph.buffers[taker.takes];
    if (taken[taker.takes]++ != 0) return violation(name("b", taker.takes) + " is taken twice");
    if (from.escapes || from.valid_on != backend::only(kCpu) || writers[taker.takes] != 0) {
      return violation(name("b", b) + " takes " + name("b", taker.takes) + ", which others see or write");
    }
    if (!taker.escapes || taker.valid_on != 0 || writers[b] != 1) {
      return violation(name("b", b) + " takes another's bytes, but is not made once and kept");
    }
    if (!from.layout.has_gaps() || taker.bytes > from.bytes) {
      return violation(name("b", taker.takes) + " has no room for " + name("b", b));
    }
  }
  return Status();
}

}  // namespace

Status verify_graph(const Graph& graph) {
  if (graph.windows == nullptr) return violation("a graph without a table of windows");
  std::vector<uint8_t> touched(graph.buffers.size());
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const auto fail = [n](const std::string& what) { return violation(name("n", n) + ": " + what); };
    if (node.op >= op_table().size()) return fail("no such operator");
    if (node.output_count > node.operand_count) return fail("more outputs than operands");
    if (node.first_operand + size_t{node.operand_count} > graph.operands.size()) {
      return fail("operands out of range");
    }
    if (node.attribute_offset + size_t{node.attribute_bytes} > graph.attributes.size()) {
      return fail("attributes out of range");
    }
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph.operands_of(node)[i];
      if (Status status = check_operand(graph, operand); !status.ok()) return fail(status.message());
      const bool output = i >= node.operand_count - node.output_count;
      if (output != (operand.access == Access::kDefine)) {
        return fail("defines are the outputs, and outputs are defined");
      }
      const Buffer& buffer = graph.buffers[operand.buffer];
      if (output && (buffer.valid_on != 0 || touched[operand.buffer])) {
        return fail(name("b", operand.buffer) + " is defined, but exists already");
      }
      touched[operand.buffer] = 1;
    }
  }
  return check_takers(graph);
}

}  // namespace hetero::graph
