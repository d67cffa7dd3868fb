#include "graph/optimize/fold_constants.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "graph/ir/binding.h"
#include "graph/optimize/rewrite.h"
#include "graph/verify/interpret.h"

namespace hetero::graph {
namespace {

using backend::kCpu;

// A result may take so many times the bytes of what it is made of; small ones may take any.
constexpr uint64_t kMostGrowth = 2;
constexpr uint64_t kSmall = uint64_t{1} << 20;

class Folder {
 public:
  explicit Folder(SavedProgram& program) : program_(program), graph_(program.graph) {}

  Status run() {
    find_dynamic();
    find_folded();
    if (std::ranges::find(folded_, uint8_t{1}) == folded_.end()) return Status();
    std::vector<Binding> bindings(graph_.buffers.size());
    if (Status status = compute(bindings); !status.ok()) return status;
    add_constants(bindings);
    remove_nodes(program_, folded_);
    return Status();
  }

 private:
  // Whether all that the node touches is known when the program is made.
  bool can_fold(const Node& node) const {
    const OpTraits& traits = op_table()[node.op];
    if (traits.side_effects || traits.is_foreign || draws(program_, node)) return false;
    if (is_dynamic_[static_cast<size_t>(&node - graph_.nodes.data())] != 0) return false;
    uint64_t before = 0;
    uint64_t after = 0;
    for (const Operand *o = graph_.operands_of(node), *end = o + node.operand_count; o != end; ++o) {
      if (!constant_[o->buffer]) return false;
      (o->writes() ? after : before) += graph_.buffers[o->buffer].bytes;
    }
    return after <= std::max(kSmall, kMostGrowth * before);
  }

  // What a node makes that has other sizes or numbers for other inputs is not the same in every
  // run.
  void find_dynamic() {
    is_dynamic_.assign(graph_.nodes.size(), 0);
    for (const DynamicSizes::OperandWindow& operand : program_.dynamic.operands) is_dynamic_[operand.node] = 1;
    for (const DynamicSizes::Number& number : program_.dynamic.numbers) is_dynamic_[number.node] = 1;
  }

  // Begins with all buffers that could be known and takes away those that are not, until nothing
  // changes: what a node writes that is not folded, and what such a node sees before it has its
  // last value.
  void find_folded() {
    constant_.assign(graph_.buffers.size(), 0);
    last_write_.assign(graph_.buffers.size(), 0);
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) constant_[b] = graph_.buffers[b].valid_on == 0;
    for (const ProgramConstant& constant : program_.constants) constant_[constant.buffer] = 1;
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      for_operands(graph_.nodes[n], [&](const Operand& operand) {
        if (!operand.writes()) return;
        last_write_[operand.buffer] = n;
        // A state.
        if (graph_.buffers[operand.buffer].valid_on != 0) constant_[operand.buffer] = 0;
      });
    }
    folded_.assign(graph_.nodes.size(), 1);
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
        if (folded_[n] == 0 || can_fold(graph_.nodes[n])) continue;
        folded_[n] = 0;
        changed = true;
        for_operands(graph_.nodes[n], [&](const Operand& operand) {
          if (operand.writes() || n < last_write_[operand.buffer]) constant_[operand.buffer] = 0;
        });
      }
    }
  }

  Status compute(std::vector<Binding>& bindings) {
    Graph part = graph_;
    part.nodes.clear();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (folded_[n] == 0) continue;
      part.nodes.push_back(graph_.nodes[n]);
      for_operands(graph_.nodes[n], [&](const Operand& operand) {
        if (operand.writes()) part.buffers[operand.buffer].escapes = true;
      });
    }
    std::vector<Binding*> pointers(bindings.size(), nullptr);
    for (const ProgramConstant& constant : program_.constants) {
      Binding& binding = bindings[constant.buffer];
      if (constant.bytes) {
        binding.blocks[kCpu] = backend::Block::adopt(constant.bytes.data(), constant.bytes.bytes(), nullptr, nullptr);
      }
      binding.valid_on = 1u << kCpu;
      pointers[constant.buffer] = &binding;
    }
    for (const Node& node : part.nodes) {
      for_operands(node, [&](const Operand& operand) {
        if (operand.writes()) pointers[operand.buffer] = &bindings[operand.buffer];
      });
    }
    return interpret(part, pointers);
  }

  template <typename Visit>
  void for_operands(const Node& node, const Visit& visit) const {
    for (int i = 0; i < node.operand_count; ++i) visit(graph_.operands_of(node)[i]);
  }

  void add_constants(std::vector<Binding>& bindings) {
    size_t number = 0;
    const auto is_taken = [this](const std::string& name) {
      return std::ranges::any_of(program_.constants, [&](const auto& other) { return other.name == name; });
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (folded_[n] == 0) continue;
      for_operands(graph_.nodes[n], [&](const Operand& operand) {
        Buffer& buffer = graph_.buffers[operand.buffer];
        if (!operand.writes() || buffer.valid_on != 0) return;
        std::string name;
        do name = "folded." + std::to_string(number++);
        while (is_taken(name));
        buffer.valid_on = 1u << kCpu;
        program_.constants.push_back({std::move(name), operand.buffer, window_of(operand.buffer, operand.window),
                                      std::move(bindings[operand.buffer].blocks[kCpu])});
      });
    }
  }

  // By which the constant is known: how it is seen where that is all of it, bytes otherwise.
  WindowId window_of(BufferId buffer, WindowId seen) {
    const Window& window = program_.windows[seen];
    const auto bytes = static_cast<int64_t>(graph_.buffers[buffer].bytes);
    if (window.contiguous && window.first_byte == 0 && window.last_byte == bytes) return seen;
    return program_.windows.intern_contiguous(parse_dtype("u8"), {{bytes}});
  }

  SavedProgram& program_;
  Graph& graph_;
  std::vector<uint8_t> is_dynamic_;   // per node
  std::vector<uint8_t> constant_;     // per buffer: the same in every run
  std::vector<uint32_t> last_write_;  // per buffer: the last node that writes it
  std::vector<uint8_t> folded_;       // per node
};

}  // namespace

Status fold_constants(SavedProgram& program) { return Folder(program).run(); }

}  // namespace hetero::graph
