#include "graph/ir/graph.h"

#include <charconv>

#include "graph/ir/text.h"

namespace hetero::graph {
namespace {

constexpr const char* kAccessNames[] = {"read", "update", "write", "define"};

struct BitName {
  uint8_t bit;
  const char* name;
};
constexpr BitName kBitNames[] = {{kConjugate, "conj"}, {kNegative, "neg"}, {kWrappedNumber, "wrapped"}};

void append_operand(std::string& text, const WindowTable& windows, const Operand& operand, bool as_output) {
  if (!as_output || operand.access != Access::kDefine) {
    text += kAccessNames[static_cast<int>(operand.access)];
    text += ' ';
  }
  text += 'b' + std::to_string(operand.buffer) + ':' + to_string(windows[operand.window]);
  for (const BitName& bit : kBitNames) {
    if (operand.bits & bit.bit) text += std::string(" ") + bit.name;
  }
}

void append_node(std::string& text, const Graph& graph, size_t index) {
  const Node& node = graph.nodes[index];
  const Operand* operands = graph.operands_of(node);
  const int inputs = node.operand_count - node.output_count;
  text += 'n' + std::to_string(index) + ": " + op_table()[node.op].name + '(';
  for (int i = 0; i < inputs; ++i) {
    if (i > 0) text += ", ";
    append_operand(text, *graph.windows, operands[i], false);
  }
  text += ')';
  for (int i = inputs; i < node.operand_count; ++i) {
    text += i == inputs ? " -> " : ", ";
    append_operand(text, *graph.windows, operands[i], true);
  }
  if (node.attribute_bytes > 0) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += " {";
    for (uint32_t i = 0; i < node.attribute_bytes; ++i) {
      const auto byte = static_cast<uint8_t>(graph.attributes[node.attribute_offset + i]);
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
    text += '}';
  }
  if (node.preference != Preference::kAuto) text += " @" + device_word(device_of(node.preference));
  if (node.sequence != index) text += " #" + std::to_string(node.sequence);
  text += '\n';
}

class GraphParser {
 public:
  GraphParser(std::string_view text, WindowTable& windows) : reader_(text), windows_(windows) {
    graph_.windows = &windows;
  }

  Result<Graph> parse() {
    // Nodes count operands and bytes of attributes with 32 bits, and a text has fewer of them than
    // characters.
    if (reader_.size() > UINT32_MAX) return reader_.error("a text of less than 4 GiB");
    for (reader_.skip_empty_lines(); !reader_.at_end(); reader_.skip_empty_lines()) {
      uint32_t id = 0;
      Status status;
      if (reader_.accept_id("b", id)) {
        status = parse_buffer(id);
      } else if (reader_.accept_id("n", id)) {
        status = parse_node(id);
      } else {
        status = reader_.error("a buffer or a node");
      }
      if (!status.ok()) return status;
      if (!reader_.accept_line_end()) return reader_.error("the end of the line");
    }
    return std::move(graph_);
  }

 private:
  Status parse_buffer(uint32_t id) {
    Buffer buffer{};
    if (id != graph_.buffers.size()) return reader_.error("buffers numbered from b0");
    if (!reader_.accept(":") || !reader_.accept_number(buffer.bytes) || !reader_.accept("bytes")) {
      return reader_.error("': N bytes'");
    }
    while (reader_.accept(",")) {
      if (reader_.accept("escapes")) {
        buffer.escapes = true;
      } else if (reader_.accept("on")) {
        if (!accept_devices(reader_, buffer.valid_on)) return reader_.error("a device");
      } else if (reader_.accept("rows of")) {
        if (!accept_layout(buffer.layout)) return reader_.error("'rows of N every N', not more than that");
      } else if (reader_.accept("takes")) {
        if (!reader_.accept_id("b", buffer.takes)) return reader_.error("a buffer");
      } else {
        return reader_.error("'escapes', 'on DEVICE', 'rows of N every N' or 'takes BUFFER'");
      }
    }
    graph_.buffers.push_back(buffer);
    return Status();
  }

  bool accept_layout(Layout& layout) {
    uint64_t row = 0;
    uint64_t pitch = 0;
    if (!reader_.accept_number(row) || !reader_.accept("every") || !reader_.accept_number(pitch)) return false;
    layout = {row, pitch};
    return row != 0 && row < pitch;
  }

  Status parse_node(uint32_t id) {
    if (id != graph_.nodes.size()) return reader_.error("nodes numbered from n0");
    if (!reader_.accept(":")) return reader_.error("':'");
    Node node{};
    node.sequence = id;
    node.first_operand = static_cast<uint32_t>(graph_.operands.size());
    node.attribute_offset = static_cast<uint32_t>(graph_.attributes.size());
    const std::string_view name = reader_.take_until("(");
    node.op = op_table().resolve(name);
    if (node.op == kNoOp) return reader_.error("a registered operator, not " + std::string(name));
    if (!reader_.accept("(")) return reader_.error("'('");
    for (bool first = true; !reader_.accept(")"); first = false) {
      if (!first && !reader_.accept(",")) return reader_.error("',' or ')'");
      if (Status status = parse_operand(); !status.ok()) return status;
    }
    if (reader_.accept("->")) {
      do {
        if (Status status = parse_operand(); !status.ok()) return status;
        ++node.output_count;
      } while (reader_.accept(","));
    }
    if (Status status = parse_attributes(); !status.ok()) return status;
    node.attribute_bytes = static_cast<uint32_t>(graph_.attributes.size()) - node.attribute_offset;
    if (backend::DeviceIndex device = 0; reader_.accept("@")) {
      if (!accept_device(reader_, device)) return reader_.error("a device");
      node.preference = prefer(device);
    }
    // '#' followed by a number is the position in the program; otherwise it starts a comment.
    reader_.accept_id("#", node.sequence);
    const size_t operands = graph_.operands.size() - node.first_operand;
    if (operands > UINT16_MAX) return reader_.error("at most 65535 operands");
    node.operand_count = static_cast<uint16_t>(operands);
    graph_.nodes.push_back(node);
    return Status();
  }

  Status parse_operand() {
    Operand operand{.buffer = 0, .window = kNoWindow, .access = Access::kDefine, .bits = 0};
    for (int access = 0; access < 4; ++access) {
      if (reader_.accept(kAccessNames[access])) operand.access = static_cast<Access>(access);
    }
    if (!reader_.accept_id("b", operand.buffer) || !reader_.accept(":")) {
      return reader_.error("an operand");
    }
    // Attributes may follow in braces too, but after a space.
    std::string window(reader_.take_until("]"));
    if (reader_.accept("]")) window += ']';
    if (reader_.next_is('{')) {
      window += reader_.take_until("}");
      window += reader_.take_until(" ,)");
    }
    operand.window = parse_window(window, windows_);
    if (operand.window == kNoWindow) return reader_.error("a window, not " + window);
    for (const BitName& bit : kBitNames) {
      if (reader_.accept(bit.name)) operand.bits |= bit.bit;
    }
    graph_.operands.push_back(operand);
    return Status();
  }

  Status parse_attributes() {
    if (!reader_.accept("{")) return Status();
    const std::string_view hex = reader_.take_until("}");
    if (hex.size() % 2 != 0 || !reader_.accept("}")) return reader_.error("attributes in hex");
    for (size_t i = 0; i < hex.size(); i += 2) {
      unsigned byte = 0;
      const char* end = hex.data() + i + 2;
      if (std::from_chars(hex.data() + i, end, byte, 16).ptr != end) {
        return reader_.error("attributes in hex");
      }
      graph_.attributes.push_back(static_cast<std::byte>(byte));
    }
    return Status();
  }

  TextReader reader_;
  WindowTable& windows_;
  Graph graph_;
};

}  // namespace

bool conflicts(const WindowTable& windows, const Operand& a, const Operand& b) {
  if (a.buffer != b.buffer || !(a.writes() || b.writes())) return false;
  // A define concerns the whole buffer, whatever its window.
  if (a.access == Access::kDefine || b.access == Access::kDefine) return true;
  return !windows[a.window].disjoint(windows[b.window]);
}

bool overwrites(const WindowTable& windows, const Operand& operand, const Buffer& buffer) {
  if (operand.access == Access::kDefine) return true;
  if (operand.access != Access::kWrite) return false;
  const Window& window = windows[operand.window];
  return window.dense && window.first_byte == 0 && window.last_byte == static_cast<int64_t>(buffer.bytes);
}

std::string to_string(const Graph& graph) {
  std::string text;
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    text += 'b' + std::to_string(i) + ": " + std::to_string(buffer.bytes) + " bytes";
    if (buffer.valid_on != 0) text += ", on " + devices_text(buffer.valid_on);
    if (buffer.escapes) text += ", escapes";
    if (buffer.layout.has_gaps()) {
      text += ", rows of " + std::to_string(buffer.layout.row_bytes) + " every " +
              std::to_string(buffer.layout.pitch_bytes);
    }
    if (buffer.takes != kNoBuffer) text += ", takes b" + std::to_string(buffer.takes);
    text += '\n';
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) append_node(text, graph, i);
  return text;
}

Result<Graph> parse_graph(std::string_view text, WindowTable& windows) { return GraphParser(text, windows).parse(); }

}  // namespace hetero::graph
