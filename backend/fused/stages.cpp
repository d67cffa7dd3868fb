// 1. Backwards from what is stored for each point or row: the values of the rows stage.
// 2. Backwards from the totals to the row values that they reduce, and on through their maps, up to
//    what only rows can give (reductions) or what the rows stage computes anyway: these become
//    temporaries.
// 3. A row value that is loaded is loaded again in the totals stage, unless the rows stage may have
//    written over it.
// 4. Each stage's kernel is written in the order of the steps.

#include "backend/fused/stages.h"

#include <algorithm>

namespace hetero::backend {
namespace {

using StepKind = FusedStep::Kind;

struct AllNonZero {
  static void begin(void* state) { *static_cast<uint8_t*>(state) = 1; }
  static void add(void* state, const void* in, int64_t n, int64_t) {
    const auto* const entries = static_cast<const uint8_t*>(in);
    uint8_t all = *static_cast<uint8_t*>(state);
    for (int64_t i = 0; i < n; ++i) all &= static_cast<uint8_t>(entries[i] != 0);
    *static_cast<uint8_t*>(state) = all;
  }
  static void merge(void* state, const void* later) {
    *static_cast<uint8_t*>(state) &= *static_cast<const uint8_t*>(later);
  }
  static void finish(const void* state, void* out) {
    *static_cast<uint8_t*>(out) = *static_cast<const uint8_t*>(state);
  }
};
constexpr Reducer kAllNonZero{1, AllNonZero::begin, AllNonZero::add, AllNonZero::merge, AllNonZero::finish};

constexpr int64_t kNone = -1;

int64_t align(int64_t bytes) { return (bytes + 63) & ~int64_t{63}; }

// Writes one stage's kernel.
class StageWriter {
 public:
  // `over_rows`: the rows are the entries.
  StageWriter(const FusedKernel& kernel, const FusedSpace& space, bool over_rows, StageKernel& to)
      : kernel_(kernel),
        space_(space),
        over_rows_(over_rows),
        to_(to),
        value_of_(kernel.values.size()),
        operand_of_(kernel.operand_count, kNone) {
    const int outer = space.rank - space.row_rank;
    to.kernel.number_count = kernel.number_count;
    to.space.rank = space.rank;
    to.space.row_rank = space.row_rank;
    std::copy_n(space.sizes, space.rank, to.space.sizes);
    if (!over_rows) return;
    to.space.rank = to.space.row_rank = std::max(outer, 1);
    if (outer == 0) to.space.sizes[0] = 1;
  }

  // A step of the kernel, with the names of this stage.
  void step(FusedStep it) {
    if (it.kind == StepKind::kStore) {
      it.value = value_of_[it.value];
    } else {
      for (int j = 0; j < it.input_count; ++j) it.inputs[j] = value_of_[it.inputs[j]];
      it.value = new_value(it.value, kernel_.values[it.value]);
    }
    if (uses_operand(it)) {
      it.operand = operand(it.operand);
    }
    to_.kernel.steps.push_back(it);
  }
  void load_temporary(uint16_t value, int64_t offset) {
    const uint16_t from = temporary(kernel_.values[value].bytes, offset, true);
    to_.kernel.steps.push_back(
        {.kind = StepKind::kLoad, .value = new_value(value, kernel_.values[value]), .operand = from});
  }
  void store_temporary(uint16_t value, int64_t offset) {
    const uint16_t into = temporary(kernel_.values[value].bytes, offset, true);
    to_.kernel.steps.push_back({.kind = StepKind::kStore, .value = value_of_[value], .operand = into});
  }
  // Whether the value holds in every row, at the temporary's one byte.
  void store_check(uint16_t value, int64_t offset) {
    to_.kernel.values.push_back({.bytes = 1, .extent = Extent::kRow});
    const auto holds = static_cast<uint16_t>(to_.kernel.values.size() - 1);
    FusedStep reduce{.kind = StepKind::kReduce, .input_count = 1, .value = holds, .reducer = &kAllNonZero};
    reduce.inputs[0] = value_of_[value];
    to_.kernel.steps.push_back(reduce);
    const uint16_t into = temporary(1, offset, false);
    to_.kernel.steps.push_back({.kind = StepKind::kStore, .value = holds, .operand = into});
    to_.checks.push_back(offset);
  }

 private:
  uint16_t new_value(uint16_t value, FusedValue properties) {
    if (over_rows_) properties.extent = properties.extent == Extent::kTotal ? Extent::kRow : Extent::kElement;
    to_.kernel.values.push_back(properties);
    return value_of_[value] = static_cast<uint16_t>(to_.kernel.values.size() - 1);
  }
  uint16_t add_operand(const FusedOperand& operand, StageOperand from) {
    to_.space.operands.push_back(operand);
    to_.operands.push_back(from);
    return to_.kernel.operand_count++;
  }
  uint16_t operand(uint16_t index) {
    if (operand_of_[index] == kNone) {
      FusedOperand known = space_.operands[index];
      if (over_rows_ && space_.rank == space_.row_rank) known.strides[0] = 0;
      operand_of_[index] = add_operand(known, {.is_temporary = false, .operand = index, .offset = 0});
    }
    return static_cast<uint16_t>(operand_of_[index]);
  }
  uint16_t temporary(int64_t bytes, int64_t offset, bool for_each_row) {
    FusedOperand operand;
    operand.bytes = bytes;
    for (int d = space_.rank - space_.row_rank - 1; d >= 0 && for_each_row; --d) {
      operand.strides[d] = bytes;
      bytes *= space_.sizes[d];
    }
    return add_operand(operand, {.is_temporary = true, .operand = 0, .offset = offset});
  }

  const FusedKernel& kernel_;
  const FusedSpace& space_;
  const bool over_rows_;
  StageKernel& to_;
  std::vector<uint16_t> value_of_;
  std::vector<int64_t> operand_of_;
};

class Splitter {
 public:
  Splitter(const FusedKernel& kernel, const FusedSpace& space)
      : kernel_(kernel),
        space_(space),
        definition_(kernel.values.size()),
        checked_(kernel.values.size()),
        in_rows_(kernel.values.size()),
        in_totals_(kernel.values.size()),
        temporary_(kernel.values.size(), kNone) {
    for (int d = 0; d < space.rank - space.row_rank; ++d) rows_ *= space.sizes[d];
    for (size_t s = 0; s < kernel.steps.size(); ++s) {
      const FusedStep& it = kernel.steps[s];
      if (it.kind != StepKind::kStore && it.kind != StepKind::kCheck) definition_[it.value] = s;
    }
  }

  int64_t run(std::vector<StageKernel>& stages) {
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == StepKind::kCheck) mark(it.value, checked_);
      if (it.kind == StepKind::kStore && !is_total(it.value)) mark(it.value, in_rows_);
    }
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == StepKind::kStore && is_total(it.value)) need_in_totals(it.value);
    }
    write_checks(stages.emplace_back());
    if (stages.back().kernel.steps.empty()) stages.pop_back();
    write_rows(stages.emplace_back());
    write_totals(stages.emplace_back());
    if (stages.back().kernel.steps.empty()) stages.pop_back();
    return bytes_;
  }

 private:
  bool is_total(uint16_t value) const { return kernel_.values[value].extent == Extent::kTotal; }
  const FusedStep& definition(uint16_t value) const { return kernel_.steps[definition_[value]]; }

  void mark(uint16_t value, std::vector<uint8_t>& marked) const {
    if (marked[value] != 0) return;
    marked[value] = 1;
    const FusedStep& it = definition(value);
    for (int j = 0; j < it.input_count; ++j) mark(it.inputs[j], marked);
  }

  void need_in_totals(uint16_t value) {
    if (in_totals_[value] != 0) return;
    in_totals_[value] = 1;
    const FusedStep& it = definition(value);
    const bool is_here = is_total(value) || it.kind == StepKind::kFill || (it.kind == StepKind::kLoad && keeps(it)) ||
                         (it.kind == StepKind::kMap && in_rows_[value] == 0);
    if (is_here) {
      for (int j = 0; j < it.input_count; ++j) need_in_totals(it.inputs[j]);
    } else {
      mark(value, in_rows_);
      temporary_[value] = take(kernel_.values[value].bytes * rows_);
    }
  }
  // Whether what is loaded stands there still after the rows stage: operands that share memory
  // address every point at the same bytes.
  bool keeps(const FusedStep& load) const {
    const FusedOperand& loaded = space_.operands[load.operand];
    return std::none_of(kernel_.steps.begin(), kernel_.steps.end(), [&](const FusedStep& it) {
      if (it.kind != StepKind::kStore || is_total(it.value)) return false;
      const FusedOperand& stored = space_.operands[it.operand];
      bool same = stored.bytes == loaded.bytes;
      for (int d = 0; d < space_.rank; ++d) {
        same = same && (space_.sizes[d] == 1 || stored.strides[d] == loaded.strides[d]);
      }
      return same;
    });
  }
  int64_t take(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += align(bytes);
    return offset;
  }

  void write_checks(StageKernel& to) {
    StageWriter writer(kernel_, space_, true, to);
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == StepKind::kCheck) {
        writer.store_check(it.value, take(1));
      } else if (it.kind != StepKind::kStore && checked_[it.value] != 0) {
        writer.step(it);
      }
    }
  }
  void write_rows(StageKernel& to) const {
    StageWriter writer(kernel_, space_, false, to);
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == StepKind::kCheck || in_rows_[it.value] == 0) continue;
      writer.step(it);
      if (it.kind != StepKind::kStore && temporary_[it.value] != kNone) {
        writer.store_temporary(it.value, temporary_[it.value]);
      }
    }
  }
  void write_totals(StageKernel& to) const {
    StageWriter writer(kernel_, space_, true, to);
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == StepKind::kStore ? !is_total(it.value) : it.kind == StepKind::kCheck) continue;
      if (in_totals_[it.value] == 0) continue;
      if (temporary_[it.value] != kNone && it.kind != StepKind::kStore) {
        writer.load_temporary(it.value, temporary_[it.value]);
      } else {
        writer.step(it);
      }
    }
  }

  const FusedKernel& kernel_;
  const FusedSpace& space_;
  int64_t rows_ = 1;
  int64_t bytes_ = 0;
  // By value.
  std::vector<size_t> definition_;
  std::vector<uint8_t> checked_, in_rows_, in_totals_;
  std::vector<int64_t> temporary_;
};

}  // namespace

int64_t split_stages(const FusedKernel& kernel, const FusedSpace& space, std::vector<StageKernel>& stages) {
  stages.clear();
  return Splitter(kernel, space).run(stages);
}

}  // namespace hetero::backend
