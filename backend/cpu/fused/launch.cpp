// prepare_fused: what a legal kernel and space are, and the order of preparing.

#include "backend/cpu/fused/launch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cpu/fused/schedule.h"

namespace hetero::backend {
namespace {

bool is_entry_size(int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16; }

// What checking finds out on the way, and its memory.
struct Facts {
  std::vector<uint8_t> defined;  // by value
  std::vector<uint8_t> stored;   // by operand
  // By value: computed by maps from row values that are loaded or filled.
  std::vector<uint8_t> from_rows;
  bool has_row_values = false;
  bool has_stages = false;  // totals or checks
  bool is_empty = false;    // strides mean nothing
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

using Kind = FusedStep::Kind;

const char* broken_rule_of_store(const FusedSpace& space, const FusedStep& step, Extent extent, Facts& facts) {
  if (!facts.defined[step.value]) return "a value is stored before it is written";
  if (facts.stored[step.operand]) return "an operand is stored twice";
  facts.stored[step.operand] = 1;
  if (extent == Extent::kTotal) {
    return is_same_along(space, step.operand, 0, space.rank) ? nullptr : "a total value is stored more than once";
  }
  // A row value may be stored once for each row, or for each point.
  const int row_begin = space.rank - space.row_rank;
  const bool by_row = extent == Extent::kRow && is_same_along(space, step.operand, row_begin, space.rank);
  for (int d = 0; d < (by_row ? row_begin : space.rank) && !facts.is_empty; ++d) {
    if (space.sizes[d] > 1 && space.operands[step.operand].strides[d] == 0) return "a store to a broadcast operand";
  }
  return nullptr;
}

// How many bytes input j has where it must be a row value: an index, what is put there, or the
// parameter of a reduction. Else 0.
int64_t parameter_bytes(const FusedStep& step, int j, int64_t value_bytes) {
  constexpr int64_t kIndexBytes = 8;
  switch (step.kind) {
    case Kind::kLookUp:
      return kIndexBytes;
    case Kind::kOneHot:
      return j == 1 ? kIndexBytes : value_bytes;
    case Kind::kReduce:
      return j == 1 ? step.reducer->parameter_bytes : 0;
    default:
      return 0;
  }
}

const char* broken_rule_of_input(const FusedKernel& kernel, const FusedStep& step, int j, const Facts& facts) {
  if (step.inputs[j] >= kernel.values.size() || step.inputs[j] == step.value || !facts.defined[step.inputs[j]]) {
    return "a value is read before it is written";
  }
  const FusedValue& value = kernel.values[step.value];
  const FusedValue& input = kernel.values[step.inputs[j]];
  const bool total = value.extent == Extent::kTotal;
  if (step.kind == Kind::kReduce) {
    if (total && input.extent != Extent::kRow) return "a total of no row value";
    if (!total && input.extent == Extent::kTotal) return "a reduction of a total value";
  } else {
    if (value.extent == Extent::kRow && input.extent == Extent::kElement)
      return "a map from element values to a row value";
    if (total != (input.extent == Extent::kTotal)) return "a map from other values to a total value";
  }
  if (step.row_map != nullptr && (value.bytes > sizeof(Number) || input.bytes != value.bytes)) {
    return "a map of other entries with a row map";
  }
  const int64_t bytes = parameter_bytes(step, j, value.bytes);
  if (bytes != 0 && (input.extent != Extent::kRow || input.bytes != bytes)) {
    return "an index or a parameter of another kind";
  }
  return nullptr;
}

// How many inputs the step has; -1 for a map, which has as many as its function takes.
int needed_inputs(const FusedStep& step) {
  switch (step.kind) {
    case Kind::kLookUp:
      return 1;
    case Kind::kOneHot:
      return 2;
    case Kind::kReduce:
      return step.reducer->parameter_bytes != 0 ? 2 : 1;
    default:
      return -1;
  }
}

// Of a step that computes a value of others.
const char* broken_rule_of_result(const FusedKernel& kernel, const FusedSpace& space, const FusedStep& step,
                                  Facts& facts) {
  const Extent extent = kernel.values[step.value].extent;
  if (step.kind == Kind::kReduce) {
    if (step.reducer == nullptr || step.reducer->state_bytes < 1 || step.reducer->state_bytes > kMaxReducerState) {
      return "a reducer without states, or with too large ones";
    }
    if (extent == Extent::kElement) return "a reduction to an element value";
    if (extent == Extent::kTotal && step.reducer->parameter_bytes != 0) return "a total of no row value";
  }
  if (step.kind == Kind::kMap && step.map == nullptr) return "a map without function";
  if ((step.kind == Kind::kOneHot || step.kind == Kind::kLookUp) && extent != Extent::kElement) {
    return "one entry of a row value";
  }
  if (step.kind == Kind::kLookUp) {
    if (space.operands[step.operand].table_rows < 1 && !facts.is_empty) return "a table without rows";
    if (!is_same_along(space, step.operand, 0, space.rank - space.row_rank)) {
      return "a table with strides along the rows";
    }
  }
  if (const int inputs = needed_inputs(step); step.input_count > 4 || (inputs >= 0 && step.input_count != inputs)) {
    return "a wrong number of inputs";
  }
  if (step.first_number > kernel.number_count) return "no such number";
  facts.from_rows[step.value] = extent == Extent::kRow && step.kind == Kind::kMap;
  for (int j = 0; j < step.input_count; ++j) {
    if (const char* rule = broken_rule_of_input(kernel, step, j, facts)) return rule;
    facts.from_rows[step.value] &= facts.from_rows[step.inputs[j]];
  }
  return nullptr;
}

const char* broken_rule(const FusedKernel& kernel, const FusedSpace& space, const FusedStep& step, Facts& facts) {
  if (step.value >= kernel.values.size()) return "no such value";
  const FusedValue& value = kernel.values[step.value];
  const bool row = value.extent == Extent::kRow;
  if (uses_operand(step)) {
    if (step.operand >= kernel.operand_count) return "no such operand";
    if (space.operands[step.operand].bytes != value.bytes) return "value and operand differ in bytes";
  }
  if (step.kind == Kind::kStore) return broken_rule_of_store(space, step, value.extent, facts);
  if (step.kind == Kind::kCheck) {
    return facts.from_rows[step.value] && value.bytes == 1 ? nullptr : "a check of what must be computed first";
  }
  if (facts.defined[step.value]) return "a value is written twice";
  const char* rule = nullptr;
  if (step.kind == Kind::kLoad) {
    if (row && !is_same_along(space, step.operand, space.rank - space.row_rank, space.rank)) {
      rule = "a row value is loaded from an operand with strides along the row";
    }
    if (value.extent == Extent::kTotal) rule = "a total value is loaded";
    facts.from_rows[step.value] = row;
  } else if (step.kind == Kind::kFill) {
    if (step.first_number * sizeof(Number) + value.bytes > kernel.number_count * sizeof(Number))
      rule = "no such number";
    facts.from_rows[step.value] = row;
  } else {
    rule = broken_rule_of_result(kernel, space, step, facts);
  }
  facts.defined[step.value] = 1;
  return rule;
}

const char* broken_rule(const FusedKernel& kernel, const FusedSpace& space, Facts& facts) {
  if (const char* rule = broken_rule(space, kernel.operand_count)) return rule;
  facts.defined.assign(kernel.values.size(), 0);
  facts.stored.assign(kernel.operand_count, 0);
  facts.from_rows.assign(kernel.values.size(), 0);
  facts.has_row_values = facts.has_stages = facts.is_empty = false;
  for (int d = 0; d < space.rank; ++d) facts.is_empty = facts.is_empty || space.sizes[d] == 0;
  for (const FusedValue& value : kernel.values) {
    if (!is_entry_size(value.bytes)) return "an entry of a size other than 1, 2, 4, 8 or 16 bytes";
    if (value.extent == Extent::kRow) facts.has_row_values = true;
    if (value.extent == Extent::kTotal) facts.has_stages = true;
  }
  for (uint16_t o = 0; o < kernel.operand_count; ++o) {
    if (!is_entry_size(space.operands[o].bytes))
      return "an operand's entry of a size other than 1, 2, 4, 8 or 16 bytes";
  }
  for (const FusedStep& step : kernel.steps) {
    if (const char* rule = broken_rule(kernel, space, step, facts)) return rule;
    if (step.kind == FusedStep::Kind::kCheck) facts.has_stages = true;
  }
  return nullptr;
}

// The limits of a map; false where it is another one.
bool find_limits(const FusedStep& map, LimitStep& found) {
  const int first = map.first_number;
  switch (map.map.formula.operation) {
    case MapOperation::kRelu:
      found.limits.low = 0;
      return true;
    case MapOperation::kClamp:
      found.low_number = first;
      found.high_number = first + 1;
      return true;
    case MapOperation::kClampMin:
      found.low_number = first;
      return true;
    case MapOperation::kClampMax:
      found.high_number = first;
      return true;
    default:
      return false;
  }
}

// A load, a limit and a store, with conversions around the limit.
LimitStep limit_step(const FusedKernel& kernel) {
  using Kind = FusedStep::Kind;
  const size_t count = kernel.steps.size();
  if (count != 3 && count != 5) return {};
  const FusedStep &load = kernel.steps.front(), &limit = kernel.steps[count / 2], &store = kernel.steps.back();
  if (load.kind != Kind::kLoad || store.kind != Kind::kStore) return {};
  for (size_t i = 1; i + 1 < count; ++i) {
    const FusedStep& step = kernel.steps[i];
    if (step.kind != Kind::kMap || step.input_count != 1 || step.inputs[0] != kernel.steps[i - 1].value) return {};
  }
  const MapFormula& formula = limit.map.formula;
  LimitStep found;
  found.is_there = true;
  found.from = load.operand;
  found.to = store.operand;
  if (store.value != kernel.steps[count - 2].value || formula.type != EntryType::kFloat32 ||
      !find_limits(limit, found)) {
    return {};
  }
  EntryType& type = found.type;
  if (count == 5) {
    const MapFormula &widens = kernel.steps[1].map.formula, &rounds = kernel.steps[3].map.formula;
    type = widens.from;
    const bool is_half = type == EntryType::kFloat16 || type == EntryType::kBFloat16;
    const auto converts = [](const MapFormula& it, EntryType from, EntryType to) {
      return it.operation == MapOperation::kConvert && it.from == from && it.type == to;
    };
    if (!is_half || !converts(widens, type, EntryType::kFloat32) || !converts(rounds, EntryType::kFloat32, type)) {
      return {};
    }
  }
  if (formula.from != EntryType{} && formula.from != type) return {};
  return found;
}

Status prepare_stages(const FusedKernel& kernel, const FusedSpace& space, FusedLaunch& launch) {
  std::vector<StageKernel> kernels;
  launch.temporary_bytes = split_stages(kernel, space, kernels);
  launch.max_stage_operands = 0;
  std::vector<FusedStage> stages;
  for (StageKernel& it : kernels) {
    FusedStage& stage = stages.emplace_back(FusedLaunch{}, std::move(it.operands), std::move(it.checks));
    if (Status status = prepare_fused(it.kernel, it.space, stage.launch); !status.ok()) return status;
    launch.max_stage_operands = std::max<int64_t>(launch.max_stage_operands, it.kernel.operand_count);
  }
  launch.stages = std::move(stages);
  return {};
}

}  // namespace

bool FusedLaunch::is_compiled() const {
  return (!empty && !program.compiled.empty()) ||
         std::ranges::any_of(stages, [](const FusedStage& stage) { return stage.launch.is_compiled(); });
}

Status prepare_fused(const FusedKernel& kernel, const FusedSpace& space, FusedLaunch& launch) {
  thread_local Facts facts;
  launch.empty = true;
  launch.pairs.clear();
  launch.stages.clear();
  launch.device_part.clear();
  launch.limit = {};
  if (const char* rule = broken_rule(kernel, space, facts)) {
    return {ErrorClass::kUsage, std::string("illegal fused kernel: ") + rule};
  }
  if (facts.has_stages) return prepare_stages(kernel, space, launch);
  make_row_space(space, facts.has_row_values, facts.stored, launch.space);
  const bool no_entries = launch.space.rows == 0 || launch.space.row == 0;
  if (kernel.steps.empty() || launch.space.rows == 0 || (no_entries && !facts.has_row_values)) return {};
  make_schedule(kernel, launch.space, facts.has_row_values, &launch.pairs, launch.program);
  if (!launch.pairs.empty()) {
    make_schedule(kernel, launch.space, facts.has_row_values, nullptr, launch.careful);
  }
  launch.has_row_values = facts.has_row_values;
  launch.limit = limit_step(kernel);
  launch.empty = false;
  return {};
}

}  // namespace hetero::backend
