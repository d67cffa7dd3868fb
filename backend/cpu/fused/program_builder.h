// ProgramBuilder: writes the steps of a fused program, and says where the values that they name
// lie. schedule.cpp alone includes it.
//
// The scheduler decides which steps are active in a section; the builder emits them in order, reads
// and writes operands in place where that is safe, and gives the other values slots of scratch
// memory by a linear scan.
//
// Thread safety: belongs to one thread, as its workspace does.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "backend/cpu/fused/program.h"
#include "backend/cpu/fused/space.h"

namespace hetero::backend {

// How blocks lie in the space.
enum class BlockLayout { kPieces, kWholeRow, kWholeRows, kTile };
enum class SlotKind : uint8_t { kElements, kRows, kStates };

// A write of an operand by the section at hand.
struct OperandWrite {
  uint16_t operand;
  int32_t alias_class;
  int32_t at;  // the step that writes
};

// Memory of the scheduler, kept from call to call.
struct ScheduleMemory {
  // By value.
  std::vector<int32_t> definition, level, last_use, first_element_use;
  std::vector<uint8_t> read_by_elements, constant, resident, kept, needed;
  std::vector<uint32_t> state, row_state;
  // By value, then by expanded value.
  std::vector<uint32_t> place, last_read;
  std::vector<uint8_t> scanned;  // its place is a slot that the linear scan takes back
  // By step.
  std::vector<uint8_t> active, store_is_row;
  std::vector<int32_t> store_phase;
  std::vector<std::pair<int32_t, int32_t>> early_loads;  // before which step, which step
  // Values in operands' memory for the section at hand.
  std::vector<int32_t> in_place;
  std::vector<OperandWrite> writes;
  std::vector<int32_t> first_write_of_class, first_write_of_operand;
  // By operand.
  std::vector<uint32_t> element_place, row_place;
  std::vector<uint8_t> class_is_loaded;
  // By place.
  std::vector<SlotKind> slot_kind;
  std::vector<int32_t> slot_width;
  std::vector<uint32_t> free_elements, free_rows, expanded_now;
  std::vector<uint8_t> touched;  // by the steps that are left
  // Of the program that is replaced: its code may be needed again.
  std::vector<CompiledRun> earlier;
};

class ProgramBuilder {
 protected:
  using StepKind = FusedStep::Kind;

  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  static constexpr int64_t kMinEntries = 256;  // in a block, whatever the scratch
  // Of one entry of all values that are computed once for each task.
  static constexpr int64_t kConstantBytes = 32;
  // The same of what is computed of them.
  static constexpr int64_t kComputedBytes = 64;

  ProgramBuilder(const FusedKernel& kernel, const RowSpace& space, std::vector<std::pair<uint16_t, uint16_t>>* pairs,
                 FusedProgram& program, ScheduleMemory& work)
      : kernel_(kernel),
        space_(space),
        pairs_(pairs),
        program_(program),
        work_(work),
        value_count_(static_cast<uint32_t>(kernel.values.size())),
        step_count_(static_cast<int32_t>(kernel.steps.size())) {}

  // -- Facts about the kernel ---------------------------------------------------------------------

  const FusedStep& step(int32_t s) const { return kernel_.steps[s]; }
  const OperandView& view(uint16_t operand) const { return space_.operands[operand]; }
  bool is_row(uint16_t value) const { return kernel_.values[value].extent == Extent::kRow; }
  uint32_t expanded(uint32_t value) const { return value_count_ + value; }
  // Steps name places, too, before values have theirs.
  uint32_t as_value(uint32_t place) const { return 2 * value_count_ + place; }

  // Whether the step has or reads one entry for each point.
  bool is_element(int32_t s) const {
    const FusedStep& it = step(s);
    if (it.kind == StepKind::kReduce) return true;
    if (it.kind == StepKind::kStore) return work_.store_is_row[s] == 0;
    return !is_row(it.value);
  }
  int inputs_of(const FusedStep& it, const uint16_t*& values) const {
    values = it.kind == StepKind::kStore ? &it.value : it.inputs;
    return it.kind == StepKind::kStore ? 1 : it.input_count;
  }
  static bool is_computed(const FusedStep& it) { return it.kind != StepKind::kLoad && it.kind != StepKind::kFill; }
  // Whether the step reads its j-th input, where that is a row value, once for each row.
  static bool reads_rows(const FusedStep& it, int j) {
    return it.kind == StepKind::kOneHot || it.kind == StepKind::kLookUp || (it.kind == StepKind::kReduce && j == 1);
  }
  bool repeats(const FusedStep& it, int j) const { return !reads_rows(it, j) && !is_row_map(it); }
  // Whether the step is a map of one element value and of row values, and blocks lie in one row.
  bool is_row_map(const FusedStep& it) const {
    if (it.kind != StepKind::kMap || it.row_map == nullptr || it.input_count < 2 || is_row(it.inputs[0])) return false;
    if (layout_ != BlockLayout::kWholeRow && layout_ != BlockLayout::kPieces) return false;
    return std::all_of(it.inputs + 1, it.inputs + it.input_count, [&](uint16_t v) { return is_row(v); });
  }

  void find_facts() {
    work_.definition.assign(value_count_, 0);
    work_.level.assign(value_count_, 0);
    work_.store_is_row.assign(step_count_, 0);
    work_.read_by_elements.assign(value_count_, 0);
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      work_.store_is_row[s] = it.kind == StepKind::kStore && is_row(it.value) && view(it.operand).same_in_row;
      const uint16_t* inputs;
      const int count = inputs_of(it, inputs);
      const bool element = is_element(s);
      int32_t level = 0;
      for (int j = 0; j < count; ++j) {
        level = std::max(level, work_.level[inputs[j]]);
        if (element && !reads_rows(it, j)) work_.read_by_elements[inputs[j]] = 1;
      }
      if (it.kind == StepKind::kStore) continue;
      work_.definition[it.value] = s;
      work_.level[it.value] = level + (it.kind == StepKind::kReduce ? 1 : 0);
    }
  }

  // -- Places -------------------------------------------------------------------------------------

  void clear(BlockLayout layout) {
    layout_ = layout;
    if (pairs_ != nullptr) pairs_->clear();
    program_.steps.clear();
    program_.phases.clear();
    program_.reductions.clear();
    program_.compiled.clear();
    program_.arrays.clear();
    program_.places.clear();
    program_.moving.clear();
    program_.task = program_.last = {};
    program_.kept_bytes = program_.stretch_bytes = 0;
    program_.streamed = false;
    program_.stretch = 1;
    work_.place.assign(2 * size_t{value_count_}, kNone);
    work_.last_read.assign(2 * size_t{value_count_}, kNone);
    work_.scanned.assign(2 * size_t{value_count_}, 0);
    work_.constant.assign(value_count_, 0);
    work_.resident.assign(value_count_, 0);
    work_.kept.assign(value_count_, 0);
    work_.element_place.assign(kernel_.operand_count, kNone);
    work_.row_place.assign(kernel_.operand_count, kNone);
    work_.slot_kind.clear();
    work_.slot_width.clear();
    work_.touched.clear();
    work_.free_elements.clear();
    work_.free_rows.clear();
    program_.run = space_.row;
    // Pieces of a row of several dimensions stay inside of the innermost, where that is long
    // enough.
    if (space_.segment >= kMinEntries) program_.run = space_.segment;
  }

  uint32_t new_place(Place place, SlotKind kind, int32_t width) {
    program_.places.push_back(place);
    work_.slot_kind.push_back(kind);
    work_.slot_width.push_back(width);
    const auto index = static_cast<uint32_t>(program_.places.size() - 1);
    if (place.kind != Place::Kind::kScratch) program_.moving.push_back(index);
    return index;
  }
  uint32_t new_slot(SlotKind kind, int32_t width) { return new_place({Place::Kind::kScratch, 0, 0, 0}, kind, width); }

  // A free slot of this width; or the narrowest wider one; or the widest of the others, widened; or
  // a new one.
  uint32_t take_slot(bool row, int32_t width) {
    std::vector<uint32_t>& free = row ? work_.free_rows : work_.free_elements;
    if (free.empty()) return new_slot(row ? SlotKind::kRows : SlotKind::kElements, width);
    size_t best = 0;
    for (size_t i = 0; i < free.size(); ++i) {
      const int32_t have = work_.slot_width[free[i]];
      const int32_t best_have = work_.slot_width[free[best]];
      if (best_have >= width ? (have >= width && have < best_have) : have > best_have) best = i;
    }
    const uint32_t slot = free[best];
    work_.slot_width[slot] = std::max(work_.slot_width[slot], width);
    free[best] = free.back();
    free.pop_back();
    return slot;
  }
  void give_slot(uint32_t slot) {
    (work_.slot_kind[slot] == SlotKind::kRows ? work_.free_rows : work_.free_elements).push_back(slot);
  }

  uint32_t operand_place(uint16_t operand, bool row) {
    uint32_t& place = (row ? work_.row_place : work_.element_place)[operand];
    if (place == kNone) {
      const auto bytes = static_cast<uint8_t>(view(operand).bytes);
      place = new_place({row ? Place::Kind::kRows : Place::Kind::kElements, bytes, operand, 0}, SlotKind::kElements, 0);
    }
    return place;
  }

  // Whether the operand's own memory can be a block's array.
  bool lies_as_block(uint16_t operand, bool row) const {
    const OperandView& it = view(operand);
    if (row)
      return !program_.streamed &&
             (layout_ == BlockLayout::kWholeRow || layout_ == BlockLayout::kPieces || it.dense_rows);
    switch (layout_) {
      case BlockLayout::kPieces:
        return program_.run == space_.segment ? it.dense_segment : it.dense_row;
      case BlockLayout::kWholeRow:
        return it.dense_row;
      case BlockLayout::kWholeRows:
        return it.dense;
      default:
        return false;
    }
  }

  // Whether what a step loads or fills is the same in all blocks.
  bool same_in_blocks(const FusedStep& it) const {
    if (it.kind == StepKind::kFill) return true;
    const bool row = is_row(it.value);
    if (it.kind != StepKind::kLoad || lies_as_block(it.operand, row)) return false;
    const OperandView& operand = view(it.operand);
    if (!operand.same_for_rows) return false;
    return row || operand.same_in_row || layout_ == BlockLayout::kWholeRow || layout_ == BlockLayout::kWholeRows;
  }

  // -- Emitting steps -----------------------------------------------------------------------------

  ProgramStep& emit(ProgramStep::Kind kind, bool row, uint32_t out, uint32_t bytes) {
    ProgramStep& it = program_.steps.emplace_back();
    it.kind = kind;
    it.row = row;
    it.bytes = it.out_bytes = static_cast<uint8_t>(bytes);
    it.out = out;
    for (uint32_t& in : it.in) in = kNone;
    it.last_read = kReadLater;
    return it;
  }
  uint32_t position() const { return static_cast<uint32_t>(program_.steps.size()); }
  uint32_t bytes_of(uint16_t value) const { return kernel_.values[value].bytes; }

  void emit_source(const FusedStep& it) {
    const bool row = is_row(it.value);
    if (it.kind == StepKind::kFill) {
      emit(ProgramStep::Kind::kFill, row, it.value, bytes_of(it.value)).first_number = it.first_number;
    } else if (lies_as_block(it.operand, row)) {
      emit(ProgramStep::Kind::kCopy, row, it.value, bytes_of(it.value)).in[0] =
          as_value(operand_place(it.operand, row));
    } else {
      emit(ProgramStep::Kind::kGather, row, it.value, bytes_of(it.value)).operand = it.operand;
    }
  }
  void emit_expand(uint16_t value) {
    emit(ProgramStep::Kind::kExpand, false, expanded(value), bytes_of(value)).in[0] = value;
  }
  void emit_map(const FusedStep& it) {
    const bool row = is_row(it.value);
    const bool row_map = is_row_map(it);
    ProgramStep& to =
        emit(row_map ? ProgramStep::Kind::kRowMap : ProgramStep::Kind::kMap, row, it.value, bytes_of(it.value));
    to.input_count = it.input_count;
    for (int j = 0; j < it.input_count; ++j) {
      to.in[j] = !row && !row_map && is_row(it.inputs[j]) ? expanded(it.inputs[j]) : it.inputs[j];
    }
    to.first_number = it.first_number;
    to.map = row_map ? it.row_map : it.map;
  }
  void emit_store(int32_t s) {
    const FusedStep& it = step(s);
    const bool row = work_.store_is_row[s] != 0;
    const uint32_t from = !row && is_row(it.value) ? expanded(it.value) : it.value;
    if (lies_as_block(it.operand, row)) {
      const uint32_t to = as_value(operand_place(it.operand, row));
      emit(ProgramStep::Kind::kCopy, row, to, bytes_of(it.value)).in[0] = from;
    } else {
      ProgramStep& to = emit(ProgramStep::Kind::kScatter, row, kNone, bytes_of(it.value));
      to.in[0] = from;
      to.operand = it.operand;
    }
  }

  // The steps that run once for each task. They take slots for good.
  void emit_constants() {
    program_.task.begin = position();
    int64_t width = 0;
    int64_t computed = 0;
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (it.kind == StepKind::kMap && is_constant_map(it) && computed + bytes_of(it.value) <= kComputedBytes) {
        work_.constant[it.value] = 1;
        work_.place[it.value] = new_slot(SlotKind::kElements, width_of(it.value));
        emit_map(it);
        computed += bytes_of(it.value);
        continue;
      }
      if ((it.kind != StepKind::kFill && it.kind != StepKind::kLoad) || !same_in_blocks(it)) continue;
      const bool row = is_row(it.value);
      if (!row && width + bytes_of(it.value) > kConstantBytes) continue;
      work_.constant[it.value] = 1;
      work_.place[it.value] = new_slot(row ? SlotKind::kRows : SlotKind::kElements, width_of(it.value));
      emit_source(it);
      if (!row) width += bytes_of(it.value);
      if (!row || !work_.read_by_elements[it.value] || width + bytes_of(it.value) > kConstantBytes) continue;
      work_.place[expanded(it.value)] = new_slot(SlotKind::kElements, width_of(it.value));
      emit_expand(it.value);
      width += bytes_of(it.value);
    }
    program_.task.end = position();
    assign(program_.task);
    if (computed > 0) give_back_inputs();
  }
  // What only other constants read has its memory for them alone.
  void give_back_inputs() {
    work_.needed.assign(value_count_, 0);
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (it.kind != StepKind::kStore && work_.constant[it.value]) continue;
      const uint16_t* inputs;
      for (int j = inputs_of(it, inputs) - 1; j >= 0; --j) work_.needed[inputs[j]] = 1;
    }
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      const bool is_source = it.kind == StepKind::kFill || it.kind == StepKind::kLoad || it.kind == StepKind::kMap;
      if (!is_source || !work_.constant[it.value] || is_row(it.value) || work_.needed[it.value]) continue;
      give_slot(work_.place[it.value]);
    }
  }
  // Whether a map of elements reads nothing but constants.
  bool is_constant_map(const FusedStep& it) const {
    if (it.input_count == 0 || !work_.constant[it.inputs[0]] || is_row(it.value) || is_row_map(it)) return false;
    return std::all_of(it.inputs, it.inputs + it.input_count,
                       [&](uint16_t input) { return !is_row(input) && work_.constant[input] != 0; });
  }
  int32_t width_of(uint16_t value) const { return static_cast<int32_t>(bytes_of(value)); }

  // Emits the active steps in order, with their values in place where that is safe.
  Section emit_active() {
    Section section{position(), 0};
    work_.last_use.assign(value_count_, -1);
    work_.first_element_use.assign(value_count_, kNever);
    for (int32_t s = 0; s < step_count_; ++s) {
      if (!work_.active[s]) continue;
      const uint16_t* inputs;
      const int count = inputs_of(step(s), inputs);
      for (int j = 0; j < count; ++j) {
        work_.last_use[inputs[j]] = s;
        if (!is_element(s) || !repeats(step(s), j)) continue;
        work_.first_element_use[inputs[j]] = std::min(work_.first_element_use[inputs[j]], s);
      }
    }
    find_writes();
    place_loads();

    size_t early = 0;
    for (int32_t s = 0; s < step_count_; ++s) {
      for (; early < work_.early_loads.size() && work_.early_loads[early].first == s; ++early) {
        emit_source(step(work_.early_loads[early].second));
      }
      if (!work_.active[s]) continue;
      const FusedStep& it = step(s);
      if (is_element(s)) {
        const uint16_t* inputs;
        const int count = inputs_of(it, inputs);
        for (int j = 0; j < count; ++j) {
          if (is_row(inputs[j]) && work_.first_element_use[inputs[j]] == s &&
              work_.place[expanded(inputs[j])] == kNone) {
            emit_expand(inputs[j]);
            work_.first_element_use[inputs[j]] = kNever;
          }
        }
      }
      switch (it.kind) {
        case StepKind::kLoad:
        case StepKind::kFill:
          emit_source(it);
          break;
        case StepKind::kMap:
          emit_map(it);
          break;
        case StepKind::kReduce:
          emit_reduction(it);
          break;
        case StepKind::kLookUp: {
          ProgramStep& to = emit(ProgramStep::Kind::kLookUp, false, it.value, bytes_of(it.value));
          to.in[0] = it.inputs[0];
          to.operand = it.operand;
          break;
        }
        case StepKind::kOneHot:
          emit_one_hot(it);
          break;
        case StepKind::kStore:
          emit_store(s);
          break;
        case StepKind::kCheck:
          break;
      }
    }
    section.end = position();
    assign(section);
    for (const int32_t value : work_.in_place) work_.place[value] = kNone;
    return section;
  }

  void emit_reduction(const FusedStep& it) {
    const uint16_t input = it.inputs[0];
    const uint32_t from = is_row(input) ? expanded(input) : input;
    if (!program_.streamed) {
      ProgramStep& to = emit(ProgramStep::Kind::kReduce, true, it.value, bytes_of(input));
      to.in[0] = from;
      if (it.input_count > 1) to.in[1] = it.inputs[1];
      to.out_bytes = static_cast<uint8_t>(bytes_of(it.value));
      to.reducer = it.reducer;
      return;
    }
    ProgramStep& to = emit(ProgramStep::Kind::kAdd, true, as_value(work_.state[it.value]), bytes_of(input));
    to.in[0] = from;
    to.reducer = it.reducer;
    const uint32_t parameter = it.input_count > 1 ? work_.place[it.inputs[1]] : kNone;
    program_.reductions.push_back({it.reducer, parameter, work_.state[it.value], work_.row_state[it.value], 0});
  }
  void emit_one_hot(const FusedStep& it) {
    ProgramStep& to = emit(ProgramStep::Kind::kOneHot, false, it.value, bytes_of(it.value));
    to.in[0] = it.inputs[0];
    to.in[1] = it.inputs[1];
  }

  // What the active stores write, and when. A step may write its result into the operand itself;
  // its store then does nothing.
  void find_writes() {
    work_.writes.clear();
    work_.in_place.clear();
    work_.first_write_of_class.assign(space_.classes.size(), kNever);
    work_.first_write_of_operand.assign(kernel_.operand_count, kNever);
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (!work_.active[s] || it.kind != StepKind::kStore) continue;
      const bool row = work_.store_is_row[s] != 0;
      const int32_t definition = work_.definition[it.value];
      const bool writes_in_place = work_.place[it.value] == kNone && work_.active[definition] &&
                                   is_computed(step(definition)) && row == is_row(it.value) &&
                                   lies_as_block(it.operand, row);
      if (writes_in_place) {
        work_.place[it.value] = operand_place(it.operand, row);
        work_.in_place.push_back(it.value);
      }
      const bool written = writes_in_place || is_written_in_place(it, row);
      if (written) work_.active[s] = 0;
      const int32_t at = written ? definition : s;
      const int32_t alias_class = view(it.operand).alias_class;
      work_.writes.push_back({it.operand, alias_class, at});
      int32_t& of_class = work_.first_write_of_class[alias_class];
      of_class = std::min(of_class, at);
      work_.first_write_of_operand[it.operand] = at;
    }
  }
  // Whether the value's place is the memory of the operand that it is stored to.
  bool is_written_in_place(const FusedStep& store, bool row) const {
    return work_.resident[store.value] &&
           (row ? work_.row_place : work_.element_place)[store.operand] == work_.place[store.value];
  }

  // Which active loads are read in place, and which are copied, when.
  void place_loads() {
    work_.early_loads.clear();
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (!work_.active[s] || it.kind != StepKind::kLoad) continue;
      const int32_t last_use = work_.last_use[it.value];
      if (last_use < 0 && work_.place[it.value] == kNone) {
        work_.active[s] = 0;
        continue;
      }
      int32_t write;
      if (pairs_ != nullptr) {
        write = work_.first_write_of_operand[it.operand];
        if (work_.first_write_of_class[view(it.operand).alias_class] < last_use) note_pairs(it.operand, last_use);
      } else {
        write = work_.first_write_of_class[view(it.operand).alias_class];
      }
      if (work_.place[it.value] == kNone && lies_as_block(it.operand, is_row(it.value)) && last_use <= write) {
        work_.place[it.value] = operand_place(it.operand, is_row(it.value));
        work_.in_place.push_back(it.value);
        work_.active[s] = 0;
      } else if (s > write) {
        work_.early_loads.emplace_back(write, s);
        work_.active[s] = 0;
      }
    }
    std::sort(work_.early_loads.begin(), work_.early_loads.end());
  }
  void note_pairs(uint16_t operand, int32_t last_use) {
    for (const OperandWrite& write : work_.writes) {
      if (write.alias_class == view(operand).alias_class && write.operand != operand && write.at < last_use) {
        pairs_->emplace_back(operand, write.operand);
      }
    }
  }

  // Linear scan: gives slots to the values of a section. A value that has a place keeps it.
  void assign(Section section) {
    for (uint32_t i = section.begin; i < section.end; ++i) {
      const ProgramStep& it = program_.steps[i];
      for (const uint32_t id : {it.in[0], it.in[1], it.in[2], it.in[3], it.out}) {
        if (id < 2 * value_count_) work_.last_read[id] = i;
      }
    }
    for (uint32_t i = section.begin; i < section.end; ++i) {
      ProgramStep& it = program_.steps[i];
      const uint32_t out = it.out;
      const bool needs_slot = out < 2 * value_count_ && work_.place[out] == kNone;
      // A map may write over an input of the same width that nobody reads later.
      uint32_t slot = kNone;
      for (const uint32_t id : it.in) {
        if (needs_slot && overwrites(it, id) && dies(id, i) && bytes_of_id(id) == bytes_of_id(out)) {
          slot = work_.place[id];
        }
      }
      const uint32_t overwritten = slot;
      if (needs_slot) {
        if (slot == kNone) slot = take_slot(it.row, static_cast<int32_t>(bytes_of_id(out)));
        work_.place[out] = slot;
        work_.scanned[out] = 1;
        it.last_read = work_.last_read[out];
      }
      uint32_t ids[5] = {it.in[0], it.in[1], it.in[2], it.in[3], out};
      it.out = out == kNone ? place_of(it.in[0]) : place_of(out);
      for (uint32_t& in : it.in) in = in == kNone ? it.out : place_of(in);
      for (const uint32_t id : ids) {
        if (!dies(id, i)) continue;
        if (id == out || work_.place[id] != overwritten) give_slot(work_.place[id]);
        work_.place[id] = kNone;
        work_.scanned[id] = 0;
      }
    }
  }
  static bool overwrites(const ProgramStep& it, uint32_t id) {
    return it.kind == ProgramStep::Kind::kMap || (it.kind == ProgramStep::Kind::kRowMap && id == it.in[0]);
  }
  bool dies(uint32_t id, uint32_t at) const {
    return id < 2 * value_count_ && work_.scanned[id] != 0 && work_.last_read[id] == at;
  }
  uint32_t bytes_of_id(uint32_t id) const { return kernel_.values[id % value_count_].bytes; }
  uint32_t place_of(uint32_t id) const { return id < 2 * value_count_ ? work_.place[id] : id - 2 * value_count_; }

  const FusedKernel& kernel_;
  const RowSpace& space_;
  std::vector<std::pair<uint16_t, uint16_t>>* pairs_;
  FusedProgram& program_;
  ScheduleMemory& work_;
  const uint32_t value_count_;
  const int32_t step_count_;
  BlockLayout layout_ = BlockLayout::kPieces;
};

}  // namespace hetero::backend
