// prepare_fused: what a legal kernel and space are, and the order of preparing.

#include "backend/cpu/fused_launch.h"

#include <string>

#include "backend/cpu/fused_schedule.h"

namespace hetero::backend {
namespace {

bool is_entry_size(int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16; }

// What checking finds out on the way, and its memory.
struct Facts {
  std::vector<uint8_t> defined;  // by value
  std::vector<uint8_t> stored;   // by operand
  bool has_row_values = false;
  bool is_empty = false;  // strides mean nothing
};

// The first rule that is broken, or null.
const char* broken_rule(const FusedSpace& space, size_t operand_count) {
  if (space.rank < 0 || space.rank > kMaxFusedRank) return "rank out of range";
  if (space.row_rank < 0 || space.row_rank > space.rank) return "row rank out of range";
  if (space.operands.size() < operand_count) return "the space lacks operands";
  for (int d = 0; d < space.rank; ++d) {
    if (space.sizes[d] < 0) return "negative size";
  }
  return nullptr;
}

// Whether the operand has one entry along dimensions [begin, end).
bool is_same_along(const FusedSpace& space, uint16_t operand, int begin, int end) {
  for (int d = begin; d < end; ++d) {
    if (space.sizes[d] > 1 && space.operands[operand].strides[d] != 0) return false;
  }
  return true;
}

const char* broken_rule(const FusedKernel& kernel, const FusedSpace& space, const FusedStep& step, Facts& facts) {
  const size_t value_count = kernel.values.size();
  if (step.value >= value_count) return "no such value";
  const FusedValue& value = kernel.values[step.value];
  const bool row = value.extent == Extent::kRow;
  if (step.kind == FusedStep::Kind::kLoad || step.kind == FusedStep::Kind::kStore) {
    if (step.operand >= kernel.operand_count) return "no such operand";
    if (space.operands[step.operand].bytes != value.bytes) return "value and operand differ in bytes";
  }
  if (step.kind == FusedStep::Kind::kStore) {
    if (!facts.defined[step.value]) return "a value is stored before it is written";
    if (facts.stored[step.operand]) return "an operand is stored twice";
    facts.stored[step.operand] = 1;
    // A row value may be stored once for each row, or for each point.
    const int row_begin = space.rank - space.row_rank;
    const bool by_row = row && is_same_along(space, step.operand, row_begin, space.rank);
    for (int d = 0; d < (by_row ? row_begin : space.rank) && !facts.is_empty; ++d) {
      if (space.sizes[d] > 1 && space.operands[step.operand].strides[d] == 0) return "a store to a broadcast operand";
    }
    return nullptr;
  }

  if (facts.defined[step.value]) return "a value is written twice";
  facts.defined[step.value] = 1;
  switch (step.kind) {
    case FusedStep::Kind::kLoad:
      if (row && !is_same_along(space, step.operand, space.rank - space.row_rank, space.rank)) {
        return "a row value is loaded from an operand with strides along the row";
      }
      break;
    case FusedStep::Kind::kFill:
      if (step.first_number * sizeof(Number) + value.bytes > kernel.number_count * sizeof(Number))
        return "no such number";
      break;
    case FusedStep::Kind::kMap:
    case FusedStep::Kind::kReduce: {
      const bool reduces = step.kind == FusedStep::Kind::kReduce;
      if (step.input_count > 4 || (reduces && step.input_count != 1)) return "a wrong number of inputs";
      if (step.first_number > kernel.number_count) return "no such number";
      for (int j = 0; j < step.input_count; ++j) {
        if (step.inputs[j] >= value_count || step.inputs[j] == step.value || !facts.defined[step.inputs[j]]) {
          return "a value is read before it is written";
        }
        if (!reduces && row && kernel.values[step.inputs[j]].extent == Extent::kElement) {
          return "a map from element values to a row value";
        }
      }
      if (reduces && !row) return "a reduction to an element value";
      if (reduces &&
          (step.reducer == nullptr || step.reducer->state_bytes < 1 || step.reducer->state_bytes > kMaxReducerState)) {
        return "a reducer without states, or with too large ones";
      }
      if (!reduces && step.map == nullptr) return "a map without function";
      break;
    }
    case FusedStep::Kind::kStore:
      break;
  }
  return nullptr;
}

const char* broken_rule(const FusedKernel& kernel, const FusedSpace& space, Facts& facts) {
  if (const char* rule = broken_rule(space, kernel.operand_count)) return rule;
  facts.defined.assign(kernel.values.size(), 0);
  facts.stored.assign(kernel.operand_count, 0);
  facts.has_row_values = facts.is_empty = false;
  for (int d = 0; d < space.rank; ++d) facts.is_empty = facts.is_empty || space.sizes[d] == 0;
  for (const FusedValue& value : kernel.values) {
    if (!is_entry_size(value.bytes)) return "an entry of a size other than 1, 2, 4, 8 or 16 bytes";
    if (value.extent == Extent::kRow) facts.has_row_values = true;
  }
  for (uint16_t o = 0; o < kernel.operand_count; ++o) {
    if (!is_entry_size(space.operands[o].bytes))
      return "an operand's entry of a size other than 1, 2, 4, 8 or 16 bytes";
  }
  for (const FusedStep& step : kernel.steps) {
    if (const char* rule = broken_rule(kernel, space, step, facts)) return rule;
  }
  return nullptr;
}

}  // namespace

Status prepare_fused(const FusedKernel& kernel, const FusedSpace& space, FusedLaunch& launch) {
  thread_local Facts facts;
  launch.empty = true;
  launch.pairs.clear();
  if (const char* rule = broken_rule(kernel, space, facts)) {
    return {ErrorClass::kUsage, std::string("illegal fused kernel: ") + rule};
  }
  make_row_space(space, facts.has_row_values, facts.stored, launch.space);
  const bool no_entries = launch.space.rows == 0 || launch.space.row == 0;
  if (kernel.steps.empty() || launch.space.rows == 0 || (no_entries && !facts.has_row_values)) return {};
  make_schedule(kernel, launch.space, facts.has_row_values, &launch.pairs, launch.program);
  if (!launch.pairs.empty()) {
    make_schedule(kernel, launch.space, facts.has_row_values, nullptr, launch.careful);
  }
  launch.empty = false;
  return {};
}

}  // namespace hetero::backend
