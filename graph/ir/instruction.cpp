#include "graph/ir/instruction.h"

namespace hetero::graph {
namespace {

constexpr bool is_in_order() {
  for (size_t i = 0; i < kInstructionKinds.size(); ++i) {
    if (static_cast<size_t>(kInstructionKinds[i].kind) != i) return false;
  }
  return true;
}
static_assert(is_in_order());

}  // namespace

std::string queue_word(QueueId queue) {
  return queue == kWorkerQueue ? "cpu worker" : device_word(device_of(queue)) + ' ' + to_string(kind_of(queue));
}

std::string to_string(const Instruction& instruction) {
  const InstructionKind& row = row_of(instruction);
  std::string text = std::string(row.word) + ' ' + std::string(row.counted) + std::to_string(instruction.index);
  if (!instruction.is_copy()) return text;
  text += " from " + device_word(instruction.from) + " to " + device_word(instruction.to);
  if (instruction.stay != 0) text += " as r" + std::to_string(instruction.stay - 1);
  return text;
}

Result<bool> accept_instruction(TextReader& reader, Instruction& instruction) {
  for (const InstructionKind& row : kInstructionKinds) {
    if (!reader.accept(row.word)) continue;
    instruction.kind = row.kind;
    if (!reader.accept_id(row.counted, instruction.index)) return reader.error(row.expected);
    if (!instruction.is_copy()) return true;
    if (!reader.accept("from") || !accept_device(reader, instruction.from) || !reader.accept("to") ||
        !accept_device(reader, instruction.to)) {
      return reader.error(row.expected);
    }
    if (!reader.accept("as")) return true;
    if (!reader.accept_id("r", instruction.stay)) return reader.error("a return");
    ++instruction.stay;
    return true;
  }
  return false;
}

}  // namespace hetero::graph
