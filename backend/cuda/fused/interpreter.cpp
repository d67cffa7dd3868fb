// 1. Every value gets slots: row values, numbers, addresses and states permanently, entries from
//    their definition to their last use.
// 2. Each launch is written: first what the row knows, then, level by level, row values and the
//    pass of their reductions, and at last the stores.
// 3. Views of the operands follow the instructions.

#include "backend/cuda/fused/interpreter.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "backend/cuda/fused/levels.h"
#include "backend/fused/formula.h"

namespace hetero::backend {
namespace {

using Kind = FusedStep::Kind;

constexpr int kNone = -1;

// Slots of one kernel.
class Slots {
 public:
  int keep(int count) {
    const int first = kept_;
    kept_ += count;
    return first;
  }
  // Entries follow all permanent slots, so they are numbered from 0 here; each takes `unit` slots.
  int take() {
    if (free_.empty()) return taken_++;
    const int last = free_.back();
    free_.pop_back();
    return last;
  }
  void give_back(int number) { free_.push_back(number); }
  int kept() const { return kept_; }
  int count(int unit) const { return kept_ + unit * taken_; }

 private:
  int kept_ = 0;
  int taken_ = 0;
  std::vector<int> free_;
};

// Of an instruction.
struct Fields {
  int type = 0, to = 0, inputs[4] = {}, variant = 0;
};

class Translator {
 public:
  Translator(const FusedKernel& kernel, const CudaVariant& variant, const RowSpace& space, const CudaLaunch& launch)
      : kernel_(kernel), variant_(variant), space_(space), levels_(kernel, variant) {
    program_.words.resize(kHeaderWords);
    // 1: neighbours in memory by neighbours.
    program_.words[kVectorWord] = variant.by_rows ? static_cast<uint64_t>(variant.vector) : 1;
    program_.words[kWideWord] = variant.wide;
    program_.words[kRowsWord] = static_cast<uint64_t>(space.rows);
    program_.words[kRowWord] = static_cast<uint64_t>(variant.by_rows ? space.row : space.rows * space.row);
    program_.words[kPartsWord] = static_cast<uint64_t>(launch.parts);
    program_.words[kPartLengthWord] = static_cast<uint64_t>(launch.part_length);
    place_values();
  }

  std::optional<InterpreterProgram> run() {
    const int slots = slots_.count(unit_);
    if (slots > kInterpreterSizes[kInterpreterSizeCount - 1].slots) return std::nullopt;
    place_arguments();
    place_views();
    if (!variant_.by_rows) {
      write(CudaEntry::Kind::kWhole, InterpreterMode::kEntries, kCudaThreads, [&] { pass(0, true); });
    } else if (!variant_.parts) {
      write(CudaEntry::Kind::kWhole, InterpreterMode::kRows, variant_.group, [&] { write_rows(); });
    } else {
      write_parts();
    }
    for (const InterpreterSize& it : kInterpreterSizes) {
      if (program_.words.size() <= static_cast<size_t>(it.words) && slots <= it.slots) return std::move(program_);
      ++program_.size;
    }
    return std::nullopt;
  }

 private:
  // -- Slots --

  bool is_kept(const FusedStep& it) const { return levels_.is_row(it.value) || it.kind == Kind::kFill; }

  void place_values() {
    operand_.assign(kernel_.operand_count, kNone);
    number_.assign(kernel_.number_count, kNone);
    value_.assign(kernel_.values.size(), kNone);
    state_.assign(kernel_.values.size(), kNone);
    for (const FusedValue& it : kernel_.values) {
      if (it.bytes == 16 && it.extent == Extent::kElement) unit_ = 2;
    }
    for (const FusedStep& it : kernel_.steps) {
      if (uses_operand(it) && operand_[it.operand] == kNone) operand_[it.operand] = slots_.keep(1);
      if (it.kind == Kind::kStore) continue;
      if (is_kept(it)) value_[it.value] = slots_.keep(kernel_.values[it.value].bytes == 16 ? 2 : 1);
      if (it.kind == Kind::kReduce) state_[it.value] = slots_.keep(kStateSlots);
      const int numbers = it.kind == Kind::kMap ? number_count(it.map.formula) : 0;
      for (int k = 0; k < numbers; ++k) {
        int& slot = number_[it.first_number + k];
        if (slot == kNone) slot = slots_.keep(1);
      }
    }
    place_entries();
  }

  // In the order of the steps. A pass runs some of the steps, so it needs a slot no longer than all
  // of them together. Stored values keep theirs to the end.
  void place_entries() {
    const size_t end = kernel_.steps.size();
    std::vector<size_t> last_use(kernel_.values.size(), 0);
    for (size_t s = 0; s < end; ++s) {
      const FusedStep& it = kernel_.steps[s];
      if (it.kind == Kind::kStore) last_use[it.value] = end;
      for (int j = 0; j < it.input_count; ++j) last_use[it.inputs[j]] = std::max(last_use[it.inputs[j]], s);
    }
    std::vector<int> taken(kernel_.values.size(), kNone);
    for (size_t s = 0; s < end; ++s) {
      const FusedStep& it = kernel_.steps[s];
      for (int j = 0; j < it.input_count; ++j) {
        int& number = taken[it.inputs[j]];
        if (number == kNone || last_use[it.inputs[j]] != s) continue;
        slots_.give_back(number);
        number = kNone;
      }
      if (it.kind == Kind::kStore || is_kept(it) || last_use[it.value] == 0) continue;
      taken[it.value] = slots_.take();
      value_[it.value] = slots_.kept() + unit_ * taken[it.value];
    }
  }

  // -- Words --

  uint16_t place() const { return static_cast<uint16_t>(program_.words.size()); }

  void place_arguments() {
    for (uint16_t o = 0; o < kernel_.operand_count; ++o) {
      if (operand_[o] == kNone) continue;
      program_.operands.push_back({place(), o, space_.operands[o].offset});
      program_.words.push_back(0);
    }
    // A fill reads numbers that no map may have requested.
    first_number_ = place();
    for (uint16_t k = 0; k < kernel_.number_count; ++k) {
      program_.numbers.push_back({place(), k, 0});
      program_.words.push_back(0);
    }
  }

  uint16_t place_view(const LinearView& view) {
    const uint16_t at = place();
    program_.words.push_back(static_cast<uint64_t>(view.rank));
    program_.words.push_back(static_cast<uint64_t>(view.strides[0]));
    for (int d = 1; d < view.rank; ++d) {
      program_.words.push_back(static_cast<uint64_t>(view.sizes[d]));
      program_.words.push_back(static_cast<uint64_t>(view.strides[d]));
    }
    return at;
  }

  void place_views() {
    entries_.assign(kernel_.operand_count, 0);
    by_row_.assign(kernel_.operand_count, 0);
    for (uint16_t o = 0; o < kernel_.operand_count; ++o) {
      const OperandView& it = space_.operands[o];
      if (operand_[o] == kNone) continue;
      if (!variant_.operands[o].by_row) entries_[o] = place_view(variant_.by_rows ? it.in_row : it.entries);
      if (variant_.by_rows) by_row_[o] = place_view(it.by_row);
    }
  }

  // -- Instructions --

  void emit(int operation, const Fields& it) {
    uint64_t bits = static_cast<uint64_t>(operation) | static_cast<uint64_t>(it.type) << 8 |
                    static_cast<uint64_t>(it.to) << 16 | static_cast<uint64_t>(it.variant) << 56;
    for (int j = 0; j < 4; ++j) bits |= static_cast<uint64_t>(it.inputs[j]) << (24 + 8 * j);
    program_.words.push_back(bits);
  }
  void emit(Instruction operation, const Fields& it = {}) { emit(static_cast<int>(operation), it); }
  // Immediates are or-ed in: their bits are unused by the instructions that have them.
  void immediate(int a, int b = 0) {
    program_.words.back() |= static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b) << 48;
  }

  int bytes_of(uint16_t value) const { return kernel_.values[value].bytes; }

  void emit_map(const FusedStep& step) {
    const MapFormula& formula = step.map.formula;
    const bool moves = formula.operation == MapOperation::kWhere || formula.operation == MapOperation::kMaskedFill;
    Fields it;
    it.type = moves ? entry_bytes(formula.type) : static_cast<int>(formula.type);
    it.to = value_[step.value];
    if (formula.operation == MapOperation::kConvert) {
      it.variant = static_cast<int>(formula.from);
    } else if (rounds_inside(formula)) {
      const bool is_float16 = formula.from == EntryType::kFloat16;
      it.variant = static_cast<int>(is_float16 ? MapVariant::kInFloat16 : MapVariant::kInBFloat16);
    } else if (is_power_of_number(formula)) {
      it.variant = static_cast<int>(MapVariant::kOfNumber);
    }
    const OperationTraits operation = traits(formula.operation);
    int input = 0, next_number = step.first_number;
    for (int j = 0; j < operation.operands + operation.numbers; ++j) {
      const bool number = j >= operation.operands || is_number(formula, j);
      it.inputs[j] = number ? number_[next_number++] : value_[step.inputs[input++]];
    }
    emit(static_cast<int>(formula.operation), it);
  }

  void emit_step(const FusedStep& it) {
    if (it.kind == Kind::kMap) {
      emit_map(it);
    } else if (it.kind == Kind::kLoad) {
      Fields fields{.type = bytes_of(it.value), .to = value_[it.value], .inputs = {operand_[it.operand]}};
      if (levels_.is_row(it.value)) return emit(Instruction::kRowLoad, fields);
      emit(Instruction::kLoad, fields);
      immediate(entries_[it.operand]);
    } else if (it.kind == Kind::kOneHot) {
      emit(
          Instruction::kOneHot,
          {.type = bytes_of(it.value), .to = value_[it.value], .inputs = {value_[it.inputs[0]], value_[it.inputs[1]]}});
    }
  }

  void emit_reduction(Instruction instruction, const FusedStep& it, int input = 0) {
    const ReducerFormula& formula = it.reducer->formula;
    const bool is_pick = formula.operation == ReduceOperation::kPick;
    emit(instruction, {.type = is_pick ? bytes_of(it.inputs[0]) : static_cast<int>(formula.type),
                       .to = state_[it.value],
                       .inputs = {input},
                       .variant = static_cast<int>(formula.operation)});
  }

  // -- Launches --

  template <typename Body>
  void write(CudaEntry::Kind kind, InterpreterMode mode, int group, Body body) {
    InterpreterProgram::Launch launch{kind, mode, static_cast<uint16_t>(group), place(), 0};
    for (uint16_t k = 0; k < kernel_.number_count; ++k) {
      if (number_[k] != kNone) emit_number(number_[k], first_number_ + k);
    }
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind != Kind::kFill) continue;
      emit_number(value_[it.value], first_number_ + it.first_number);
      if (bytes_of(it.value) == 16) emit_number(value_[it.value] + 1, first_number_ + it.first_number + 1);
    }
    for (const InterpreterProgram::Place& it : program_.operands) {
      if (variant_.by_rows) {
        emit(Instruction::kRowAddress, {.to = operand_[it.index]});
        immediate(it.word, by_row_[it.index]);
      } else {
        emit_number(operand_[it.index], it.word);
      }
    }
    body();
    launch.end = place();
    program_.launches.push_back(launch);
  }
  void emit_number(int slot, int word) {
    emit(Instruction::kNumber, {.to = slot});
    immediate(word);
  }

  // Row values of this level; `merged`: with the states of its reductions from memory.
  void row_values(int level, bool merged) {
    for (const FusedStep& it : kernel_.steps) {
      if (!merged || it.kind != Kind::kReduce || levels_.level(it.value) != level) continue;
      emit_reduction(Instruction::kMerge, it);
      immediate(levels_.reduction(it.value));
    }
    for (const FusedStep& it : kernel_.steps) {
      if (it.kind == Kind::kStore || !levels_.is_row(it.value) || levels_.level(it.value) != level) continue;
      if (it.kind == Kind::kReduce) {
        emit_reduction(Instruction::kFinish, it, value_[it.value]);
      } else {
        emit_step(it);
      }
    }
  }

  void pass(int level, bool stores) {
    const std::vector<uint8_t> wanted = levels_.needed(level, stores);
    emit(Instruction::kPass, {.type = stores});
    const size_t start = program_.words.size();
    for (const FusedStep& it : kernel_.steps) {
      if (!stores && levels_.is_reduction_of(it, level)) {
        emit_reduction(Instruction::kAdd, it, value_[it.inputs[0]]);
      } else if (it.kind != Kind::kStore && wanted[it.value] != 0) {
        emit_step(it);
      }
    }
    for (const FusedStep& it : kernel_.steps) {
      if (!stores || !levels_.is_entry_store(it)) continue;
      emit(Instruction::kStore, {.type = bytes_of(it.value), .to = value_[it.value], .inputs = {operand_[it.operand]}});
      immediate(entries_[it.operand]);
    }
    program_.words[start - 1] |= static_cast<uint64_t>(program_.words.size() - start) << 32;
  }

  void reduce(int level) {
    const auto each = [&](auto visit) {
      for (const FusedStep& it : kernel_.steps) {
        if (levels_.is_reduction_of(it, level)) visit(it);
      }
    };
    each([&](const FusedStep& it) {
      emit_reduction(Instruction::kBegin, it, it.reducer->parameter_bytes == 0 ? 0 : value_[it.inputs[1]]);
    });
    pass(level, false);
    each([&](const FusedStep& it) { emit_reduction(Instruction::kReduce, it); });
  }

  void store_row_values() {
    for (const FusedStep& it : kernel_.steps) {
      if (!levels_.is_row_store(it)) continue;
      emit(Instruction::kRowStore,
           {.type = bytes_of(it.value), .to = value_[it.value], .inputs = {operand_[it.operand]}});
    }
  }

  void write_rows() {
    for (int level = 0; level <= levels_.last(); ++level) {
      row_values(level, false);
      if (level < levels_.last()) reduce(level);
    }
    if (levels_.has_entry_stores()) pass(levels_.last(), true);
    if (!levels_.has_row_stores()) return;
    emit(Instruction::kSynchronize);  // others may still be reading what is overwritten
    store_row_values();
  }

  void write_parts() {
    const auto row_values_up_to = [&](int level) {
      for (int below = 0; below <= level; ++below) row_values(below, true);
    };
    for (int level = 0; level < levels_.last(); ++level) {
      write(CudaEntry::Kind::kPass, InterpreterMode::kParts, kCudaThreads, [&] {
        row_values_up_to(level);
        reduce(level);
        for (const FusedStep& it : kernel_.steps) {
          if (!levels_.is_reduction_of(it, level)) continue;
          emit_reduction(Instruction::kKeep, it);
          immediate(levels_.reduction(it.value));
        }
      });
    }
    if (levels_.has_entry_stores()) {
      write(CudaEntry::Kind::kPass, InterpreterMode::kParts, kCudaThreads, [&] {
        row_values_up_to(levels_.last());
        pass(levels_.last(), true);
      });
    }
    if (!levels_.has_row_stores()) return;
    write(CudaEntry::Kind::kRows, InterpreterMode::kRows, 1, [&] {
      row_values_up_to(levels_.last());
      store_row_values();
    });
  }

  const FusedKernel& kernel_;
  const CudaVariant& variant_;
  const RowSpace& space_;
  const FusedLevels levels_;
  InterpreterProgram program_;
  Slots slots_;
  int unit_ = 1;                                       // slots of an entry
  uint16_t first_number_ = 0;                          // its word
  std::vector<int> operand_, number_, value_, state_;  // slots
  std::vector<uint16_t> entries_, by_row_;             // views, by operand
};

}  // namespace

void InterpreterProgram::fill(void* const* operand_addresses, const Number* number_values, void* states,
                              uint64_t* to) const {
  std::memcpy(to, words.data(), words.size() * sizeof(uint64_t));
  for (const Place& it : operands) {
    to[it.word] = std::bit_cast<uintptr_t>(operand_addresses[it.index]) + static_cast<uint64_t>(it.offset);
  }
  for (const Place& it : numbers) to[it.word] = number_values[it.index].bits;
  to[kStatesWord] = std::bit_cast<uintptr_t>(states);
}

void InterpreterProgram::choose(const Launch& launch, uint64_t* to) const {
  to[kModeWord] = static_cast<uint64_t>(launch.mode);
  to[kGroupWord] = launch.group;
  to[kBeginWord] = launch.begin;
  to[kEndWord] = launch.end;
}

std::optional<InterpreterProgram> interpreter_program(const FusedKernel& kernel, const CudaVariant& variant,
                                                      const RowSpace& space, const CudaLaunch& launch) {
  return Translator(kernel, variant, space, launch).run();
}

// A kernel with totals is split into stages, which pass row values on: here it is one kernel that
// stores them all. What is stored for each row or for each point is the space's matter, as are
// dimensions, so both are counted, with all the dimensions that there may be.
bool can_interpret(const FusedKernel& kernel) {
  FusedKernel whole = kernel;
  const auto is_total = [](const FusedValue& it) { return it.extent == Extent::kTotal; };
  const bool has_totals = std::ranges::any_of(kernel.values, is_total);
  for (uint16_t v = 0; v < kernel.values.size() && has_totals; ++v) {
    if (kernel.values[v].extent == Extent::kElement) continue;
    whole.values[v].extent = Extent::kRow;
    whole.steps.push_back({.kind = Kind::kStore, .value = v, .operand = whole.operand_count++});
  }
  CudaVariant variant;
  variant.by_rows = std::ranges::any_of(whole.values, [](const FusedValue& it) { return it.extent == Extent::kRow; });
  variant.parts = variant.by_rows;  // which takes most instructions
  RowSpace space;
  space.operands.resize(whole.operand_count);
  for (OperandView& it : space.operands) it.entries.rank = it.in_row.rank = it.by_row.rank = kMaxFusedRank;
  size_t words = 0;
  for (const bool once : {false, true}) {
    variant.operands.assign(whole.operand_count, {.row_store = once});
    const std::optional<InterpreterProgram> program = interpreter_program(whole, variant, space, {});
    if (!program.has_value()) return false;
    words += program->words.size();
  }
  return words <= static_cast<size_t>(kInterpreterSizes[kInterpreterSizeCount - 1].words);
}

}  // namespace hetero::backend
