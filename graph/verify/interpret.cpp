// The oracle: a loop over the nodes, in program order, on the CPU. It shares nothing with the
// passes and the executor, so that a difference between the two points at one of them.

#include "graph/verify/interpret.h"

#include <exception>
#include <vector>

#include "backend/registry/registry.h"
#include "graph/ir/kernel_error.h"

namespace hetero::graph {
namespace {

using backend::Block;
using backend::kCpu;

class Interpreter {
 public:
  Interpreter(const Graph& graph, std::span<Binding* const> bindings)
      : graph_(graph),
        bindings_(bindings),
        memory_(graph.buffers.size()),
        data_(graph.buffers.size()),
        errors_(graph.buffers.size()),
        written_(graph.buffers.size()) {
    for (BufferId b = 0; b < graph.buffers.size(); ++b) {
      if (bindings[b] != nullptr) errors_[b] = bindings[b]->error;
    }
    for (const Operand& operand : graph.operands) {
      if (operand.writes() && bindings[operand.buffer] != nullptr) bindings[operand.buffer]->derived.reset();
    }
  }

  Status run() {
    Status first;
    for (const Node& node : graph_.nodes) {
      bool ran = true;
      Status status = poison_of_inputs(node);
      if (status.ok()) {
        status = call(node, ran);
      } else {
        ran = false;
      }
      if (first.ok()) first = status;
      mark_outputs(node, status, ran);
    }
    settle();
    return first;
  }

 private:
  Status poison_of_inputs(const Node& node) const {
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph_.operands_of(node)[i];
      if (operand.reads() && !errors_[operand.buffer].ok()) return errors_[operand.buffer];
    }
    return Status();
  }

  Status provide(BufferId buffer) {
    if (data_[buffer] != nullptr) return Status();
    Block& block = bindings_[buffer] != nullptr ? bindings_[buffer]->blocks[kCpu] : memory_[buffer];
    if (!block) {
      Result<Block> made = backend::cpu_device().allocate(graph_.buffers[buffer].bytes);
      if (!made.ok()) return made.status();
      block = std::move(made.value());
    }
    data_[buffer] = block.data();
    return Status();
  }

  Status call(const Node& node, bool& ran) {
    ran = false;
    const Operand* const operands = graph_.operands_of(node);
    std::vector<void*> data;
    std::vector<Block> brought(node.operand_count);
    for (int i = 0; i < node.operand_count; ++i) {
      if (Status status = provide(operands[i].buffer); !status.ok()) return status;
      data.push_back(data_[operands[i].buffer]);
    }
    const OpTraits& traits = op_table()[node.op];
    ran = true;
    try {
      traits.kernel({.node = &node,
                     .operands = operands,
                     .data = data.data(),
                     .brought = brought.data(),
                     .attributes = graph_.attributes.data() + node.attribute_offset,
                     .windows = graph_.windows,
                     .traits = &traits});
    } catch (...) {
      return kernel_error(traits.name);
    }
    return Status();
  }

  void mark_outputs(const Node& node, const Status& status, bool ran) {
    for (int i = 0; i < node.operand_count; ++i) {
      const Operand& operand = graph_.operands_of(node)[i];
      if (!operand.writes()) continue;
      const Buffer& buffer = graph_.buffers[operand.buffer];
      if (ran) written_[operand.buffer] = true;
      if (!status.ok() || overwrites(*graph_.windows, operand, buffer)) {
        errors_[operand.buffer] = status;
      }
    }
  }

  void settle() {
    for (BufferId b = 0; b < graph_.buffers.size(); ++b) {
      if (bindings_[b] == nullptr || (data_[b] == nullptr && errors_[b].ok())) continue;
      Binding& binding = *bindings_[b];
      binding.error = errors_[b];
      // What was there before stays there, as far as nodes have come.
      if (!errors_[b].ok() && graph_.buffers[b].valid_on == 0) {
        binding.valid_on = 0;
      } else if (written_[b] || graph_.buffers[b].valid_on == 0) {
        binding.valid_on = 1u << kCpu;
      }
    }
  }

  const Graph& graph_;
  std::span<Binding* const> bindings_;
  std::vector<Block> memory_;
  std::vector<void*> data_;
  std::vector<Status> errors_;
  std::vector<bool> written_;
};

}  // namespace

Status interpret(const Graph& graph, std::span<Binding* const> bindings) { return Interpreter(graph, bindings).run(); }

}  // namespace hetero::graph
