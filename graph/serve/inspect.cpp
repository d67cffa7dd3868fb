#include "graph/serve/inspect.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "graph/ir/text.h"
#include "graph/program/program_sizes.h"

namespace hetero::graph {
namespace {

std::string bytes_text(uint64_t bytes) {
  char text[32];
  if (bytes < 10 << 10) {
    std::snprintf(text, sizeof(text), "%llu bytes", static_cast<unsigned long long>(bytes));
  } else if (bytes < 10 << 20) {
    std::snprintf(text, sizeof(text), "%.1f KiB", static_cast<double>(bytes) / (1 << 10));
  } else {
    std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return text;
}

void append_values(std::string& text, const char* kind, const std::vector<ProgramValue>& values,
                   const SavedProgram& program) {
  text += std::string(kind) + ":\n";
  for (size_t i = 0; i < values.size(); ++i) {
    text += "  " + std::to_string(i) + " " + values[i].name + ": " + shape_text(program, values, i) + " in b" +
            std::to_string(values[i].buffer) + '\n';
  }
}

void append_constants(std::string& text, const SavedProgram& program) {
  uint64_t bytes = 0;
  for (const ProgramConstant& constant : program.constants) bytes += constant.bytes.bytes();
  text += "weights: " + std::to_string(program.constants.size()) + ", " + bytes_text(bytes) + '\n';
  for (const ProgramConstant& constant : program.constants) {
    text += "  " + constant.name + ": " + to_string(program.windows[constant.window]) + " in b" +
            std::to_string(constant.buffer) + '\n';
  }
}

void append_memory(std::string& text, const GraphExecutor& executor) {
  const Plan& plan = executor.plan().plan;
  text += "memory:\n";
  for (backend::DeviceIndex d = 0; d < plan.device_count; ++d) {
    if (executor.bytes(d) == 0) continue;
    text += "  " + device_word(d) + ": " + bytes_text(executor.bytes(d)) + " for " + std::to_string(executor.slots()) +
            " slots of inputs and outputs, and temporaries, which share " + bytes_text(plan.arena_bytes[d]) +
            " (at least " + bytes_text(plan.arena_lower_bound[d]) + " are in use at once)\n";
  }
}

void append_placement(std::string& text, const SavedProgram& program, const Plan& plan) {
  std::map<std::string, int> reasons;
  for (size_t n = 0; n < plan.placements.size(); ++n) {
    if (plan.live[n] == 0) continue;
    ++reasons[device_word(plan.placements[n].device) + ", " + to_string(plan.placements[n].reason)];
  }
  text += "placement: " + std::to_string(program.graph.nodes.size()) + " nodes, " + std::to_string(plan.dead_nodes) +
          " of which are not needed, " + std::to_string(plan.groups.size()) + " fused groups\n";
  for (const auto& [reason, count] : reasons) text += "  " + std::to_string(count) + " on the " + reason + '\n';
}

}  // namespace

std::string inspect(const GraphExecutor& executor) {
  const SavedProgram& program = executor.model().program();
  std::string text;
  append_values(text, "inputs", program.inputs, program);
  append_values(text, "outputs", program.outputs, program);
  append_constants(text, program);
  append_memory(text, executor);
  append_placement(text, program, executor.plan().plan);
  text += "plan: " + executor.plan().origin + "\n\n";
  if (!program.dynamic.dimensions().empty()) {
    text +=
        "sizes, now for " + sizes_text(program.dynamic, executor.sizes()) + ":\n" + to_string(program.dynamic) + '\n';
  }
  text += "graph:\n" + to_string(executor.plan().graph) + '\n';
  return text + to_string(executor.plan().plan);
}

}  // namespace hetero::graph
