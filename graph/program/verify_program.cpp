#include "graph/program/verify_program.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/program/program_sizes.h"
#include "graph/verify/verify.h"

namespace hetero::graph {
namespace {

using backend::kCpu;

// More than any machine has; what is added up over all buffers does not overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 56;
constexpr uint64_t kDrawBytes = 16;
constexpr uint8_t kAllBits = kConjugate | kNegative | kWrappedNumber;

Status illegal(std::string message) { return Status(ErrorClass::kUsage, std::move(message)); }
std::string name_of(BufferId buffer) { return 'b' + std::to_string(buffer); }

class ProgramVerifier {
 public:
  explicit ProgramVerifier(const SavedProgram& program) : program_(program), graph_(program.graph) {}

  Status run() {
    using Check = Status (ProgramVerifier::*)();
    constexpr Check kChecks[] = {
        &ProgramVerifier::check_graph,   &ProgramVerifier::check_inputs,  &ProgramVerifier::check_constants,
        &ProgramVerifier::check_outputs, &ProgramVerifier::check_buffers, &ProgramVerifier::check_order,
        &ProgramVerifier::check_nodes,   &ProgramVerifier::check_draws,   &ProgramVerifier::check_sizes};
    for (const Check check : kChecks) {
      if (Status status = (this->*check)(); !status.ok()) return status;
    }
    return Status();
  }

 private:
  Status check_graph() {
    if (graph_.windows != &program_.windows) return illegal("the graph's windows are not the program's");
    if (Status status = verify_graph(graph_); !status.ok()) return illegal(status.message());
    uint64_t bytes = 0;
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      if (graph_.buffers[b].bytes > kMostBytes - bytes) return illegal("the buffers are too large for any memory");
      bytes += graph_.buffers[b].bytes;
    }
    inputs_.resize(graph_.buffers.size());
    constants_.resize(graph_.buffers.size());
    return Status();
  }

  bool lies_within(const Window& window, BufferId buffer) const {
    // A window without elements may begin behind the bytes: it sees none.
    return window.first_byte >= 0 &&
           (window.numel == 0 || static_cast<uint64_t>(window.last_byte) <= graph_.buffers[buffer].bytes);
  }

  // What inputs, outputs and constants have in common. `kind`: what it is, for messages.
  template <typename Value>
  Status check_values(const std::vector<Value>& values, const std::string& kind) const {
    std::set<std::string_view> names;
    for (const Value& value : values) {
      if (value.name.empty()) return illegal(kind + " has no name");
      if (!names.insert(value.name).second) return illegal("two of a kind have the name " + value.name);
      if (value.buffer >= graph_.buffers.size() || value.window >= program_.windows.size()) {
        return illegal(kind + ' ' + value.name + " has a buffer or a window that is not there");
      }
      if (!lies_within(program_.windows[value.window], value.buffer)) {
        return illegal(kind + ' ' + value.name + " reaches outside " + name_of(value.buffer));
      }
    }
    return Status();
  }

  Status check_bits(const std::vector<ProgramValue>& values) const {
    const bool known = std::ranges::all_of(values, [](const ProgramValue& value) { return value.bits <= kAllBits; });
    return known ? Status() : illegal("an input or an output has bits that mean nothing");
  }

  Status check_inputs() {
    if (Status status = check_values(program_.inputs, "an input"); !status.ok()) return status;
    for (const ProgramValue& input : program_.inputs) inputs_[input.buffer] = 1;
    return check_bits(program_.inputs);
  }

  Status check_constants() {
    if (Status status = check_values(program_.constants, "a constant"); !status.ok()) return status;
    for (const ProgramConstant& constant : program_.constants) {
      const uint64_t bytes = graph_.buffers[constant.buffer].bytes;
      const bool first = constants_[constant.buffer]++ == 0;
      if (constant.name == "__metadata__") return illegal("no constant may have the name __metadata__");
      if (first && (constant.bytes.bytes() < bytes || (bytes > 0 && constant.bytes.data() == nullptr))) {
        return illegal("the constant " + constant.name + " has fewer bytes than " + name_of(constant.buffer));
      }
      if (!first && constant.bytes) {
        return illegal("the constant " + constant.name + " has bytes, which another of the same buffer has already");
      }
      if (inputs_[constant.buffer] != 0) return illegal("the constant " + constant.name + " is an input as well");
      constants_[constant.buffer] = 1;
    }
    return Status();
  }

  Status check_outputs() {
    if (Status status = check_values(program_.outputs, "an output"); !status.ok()) return status;
    for (const ProgramValue& output : program_.outputs) {
      if (!graph_.buffers[output.buffer].escapes) {
        return illegal("the output " + output.name + " is in " + name_of(output.buffer) + ", which does not escape");
      }
    }
    return check_bits(program_.outputs);
  }

  // Buffers that exist before the run are on the CPU, without gaps, and are inputs or constants.
  // Only outputs are visible outside.
  Status check_buffers() {
    std::vector<uint8_t> visible = inputs_;
    for (const ProgramValue& output : program_.outputs) visible[output.buffer] = 1;
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      const Buffer& buffer = graph_.buffers[b];
      const bool given = inputs_[b] != 0 || constants_[b] != 0;
      if (buffer.valid_on != (given ? 1u << kCpu : 0u)) {
        return illegal(name_of(b) + (given ? " is given, but is not said to be there before"
                                           : " is there before, but nobody gives it"));
      }
      if (buffer.escapes && visible[b] == 0) return illegal(name_of(b) + " escapes, but is no input and no output");
      if (buffer.layout.has_gaps() || buffer.takes != kNoBuffer) {
        return illegal(name_of(b) + " grows in place, which a saved program cannot");
      }
    }
    return Status();
  }

  // Every value that is read has been made, except memory without values that a node writes in
  // part. A value without bytes, such as the weight of a layer without inputs, needs no maker.
  Status check_order() {
    std::vector<uint8_t> made(graph_.buffers.size());
    for (BufferId b = 0; b < made.size(); ++b)
      made[b] = inputs_[b] != 0 || constants_[b] != 0 || graph_.buffers[b].bytes == 0;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const Operand* const operands = graph_.operands_of(node);
      for (int i = 0; i < node.operand_count; ++i) {
        const BufferId b = operands[i].buffer;
        if (operands[i].bits > kAllBits) return fails(n, "has an operand with bits that mean nothing");
        if (!lies_within(program_.windows[operands[i].window], b)) return fails(n, "reaches outside " + name_of(b));
        if (!operands[i].writes() && made[b] == 0) return fails(n, "reads " + name_of(b) + " before it is made");
      }
      for (int i = 0; i < node.operand_count; ++i) made[operands[i].buffer] |= operands[i].writes();
    }
    for (const ProgramValue& output : program_.outputs) {
      if (made[output.buffer] == 0) return illegal("the output " + output.name + " is never made");
    }
    return Status();
  }

  // Only what an operator's random numbers come from may be written over in attributes that have
  // been checked.
  Status check_draws() {
    std::vector<uint64_t> draws = program_.draws;
    std::ranges::sort(draws);
    uint64_t free = 0;  // behind the last one
    std::vector<const Node*> nodes;
    for (const Node& node : graph_.nodes) {
      if (node.attribute_bytes > 0) nodes.push_back(&node);
    }
    std::ranges::sort(nodes, {}, &Node::attribute_offset);
    for (const uint64_t draw : draws) {
      const auto next = std::ranges::upper_bound(nodes, draw, {}, &Node::attribute_offset);
      if (draw < free || next == nodes.begin() || !has_draw(**std::prev(next), draw)) {
        return illegal("a draw at " + std::to_string(draw) + " is not among the attributes of a random operator");
      }
      free = draw + kDrawBytes;
    }
    return Status();
  }

  Status check_sizes() { return verify_sizes(program_); }

  bool has_draw(const Node& node, uint64_t draw) const {
    const OpTraits& traits = op_table()[node.op];
    if (traits.has_draw != nullptr) return traits.has_draw(graph_, node, draw);
    const uint64_t end = uint64_t{node.attribute_offset} + node.attribute_bytes;
    return traits.op_class == OpClass::kRandom && draw <= end && end - draw >= kDrawBytes;
  }

  Status check_nodes() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const OpTraits& traits = op_table()[graph_.nodes[n].op];
      if (traits.kernel == nullptr) return fails(n, "has no kernel");
      if (traits.check == nullptr) continue;
      if (Status status = traits.check(graph_, graph_.nodes[n]); !status.ok()) return fails(n, status.message());
    }
    return Status();
  }

  Status fails(size_t node, const std::string& what) const {
    return illegal('n' + std::to_string(node) + " (" + op_table()[graph_.nodes[node].op].name + ") " + what);
  }

  const SavedProgram& program_;
  const Graph& graph_;
  std::vector<uint8_t> inputs_;     // per buffer: it is one
  std::vector<uint8_t> constants_;  // the same
};

}  // namespace

Status verify_program(const SavedProgram& program) { return ProgramVerifier(program).run(); }

}  // namespace hetero::graph
