// 1. A layout of blocks is chosen from the space: pieces of rows, whole rows, several rows, or
//    tiles.
// 2. Where each value's entries can lie is decided: an operand that already lies as a block needs
//    it is read and written in place, values that are the same in all blocks are computed once for
//    each task.
// 3. Loads see memory as it was before the kernel. A load that is used after a write that may hit
//    its memory is copied first.
// 4. Rows that do not fit into a block are streamed in phases. From the last phase to the first:
//    what the phase must give, and from that backwards what it must compute. A value of an earlier
//    phase is kept for the whole row if it is costly and fits, else computed again.
// 5. The steps are emitted over values, then a linear scan gives values to slots of scratch memory
//    (program_builder.h).
// 6. Runs of cheap steps are compiled (compile.h).
// 7. The number of entries in a block follows from the slots, so that they fit into the L1 cache.

#include "backend/cpu/fused/schedule.h"

#include <algorithm>

#include "backend/base/rounding.h"
#include "backend/cpu/fused/compile.h"
#include "backend/cpu/fused/program_builder.h"

namespace hetero::backend {
namespace {

// What a block touches, in scratch and in place: most of an L1 cache.
constexpr int64_t kBlockBytes = 32 << 10;
constexpr int64_t kMaxEntries = 2048;  // in a block
// In a block without scratch arrays, which nothing needs twice.
constexpr int64_t kPassedEntries = 8192;
constexpr int64_t kShortRow = 256;  // rows up to this size are taken several at a time
constexpr int64_t kTileRows = 16;   // rows of a block where an operand is transposed
// Scratch of a block that holds whole rows: in the L2 cache.
constexpr int64_t kWholeRowBytes = 128 << 10;
constexpr int64_t kWholeRowEntries = 32 << 10;  // in a block that holds whole rows
constexpr int64_t kKeptBytes = 1 << 20;         // what may be kept of a streamed row
constexpr int64_t kTaskSteps = 64 << 10;        // entries times steps that are worth a task
// Take as long in machine code as one that is interpreted.
constexpr int64_t kCompiledSteps = 8;
// Take as long as a call of a vector function like exp, or less.
constexpr int64_t kOpaqueSteps = 4;
// Entries of a row that are reduced before states are merged.
constexpr int64_t kStretch = 32 << 10;
constexpr size_t kMaxPairs = 64;  // more are not worth comparing at each run

int64_t align(int64_t bytes) { return (bytes + 63) & ~int64_t{63}; }

class Scheduler : ProgramBuilder {
 public:
  Scheduler(const FusedKernel& kernel, const RowSpace& space, bool has_row_values,
            std::vector<std::pair<uint16_t, uint16_t>>* pairs, FusedProgram& program, ScheduleMemory& work)
      : ProgramBuilder(kernel, space, pairs, program, work), has_row_values_(has_row_values) {}

  void run() {
    work_.earlier.swap(program_.compiled);
    plan();
    compile_program(program_);
    find_touched();
    choose_blocks();
    lay_out_scratch();
    work_.earlier.clear();
  }

 private:
  void plan() {
    find_facts();
    if (!has_row_values_) {
      const bool one_row = space_.rows == 1;
      if (!one_row && space_.transposed && space_.row > 2 * kTileRows) {
        plan_blocks(BlockLayout::kTile);
      } else {
        const bool whole = space_.row <= kShortRow || (space_.row <= kMaxEntries && has_row_constants());
        plan_blocks(one_row || !whole ? BlockLayout::kPieces : BlockLayout::kWholeRows);
      }
      return;
    }
    const bool several = space_.rows > 1 && (space_.row <= kShortRow || space_.transposed);
    plan_blocks(several ? BlockLayout::kWholeRows : BlockLayout::kWholeRow);
    choose_blocks();
    const int64_t entries = program_.rows_per_block * space_.row;
    if (entries > kWholeRowEntries || entries * element_bytes() > kWholeRowBytes) {
      plan_stream(space_.rows > 1 && space_.transposed ? BlockLayout::kTile : BlockLayout::kPieces);
    }
  }

  // Whether something is computed that is the same in all rows.
  bool has_row_constants() {
    constexpr uint8_t kNumber = 1, kRowValue = 2;
    work_.needed.assign(value_count_, 0);
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (it.kind == StepKind::kFill) {
        work_.needed[it.value] = kNumber;
      } else if (it.kind == StepKind::kLoad) {
        work_.needed[it.value] = view(it.operand).same_for_rows ? kRowValue : 0;
      } else if (it.kind == StepKind::kMap && it.input_count > 0) {
        uint8_t least = kRowValue, most = 0;
        for (int j = 0; j < it.input_count; ++j) {
          least = std::min(least, work_.needed[it.inputs[j]]);
          most = std::max(most, work_.needed[it.inputs[j]]);
        }
        work_.needed[it.value] = least == 0 ? 0 : most;
        if (least != 0 && most == kRowValue) return true;
      }
    }
    return false;
  }

  // -- Blocks of several rows, whole rows or pieces, with all steps in one phase ------------------

  void plan_blocks(BlockLayout layout) {
    clear(layout);
    emit_constants();
    work_.active.assign(step_count_, 1);
    for (int32_t s = 0; s < step_count_; ++s) {
      if (step(s).kind != StepKind::kStore && work_.constant[step(s).value]) work_.active[s] = 0;
    }
    program_.phases.resize(1);
    program_.phases[0].pieces = emit_active();
  }

  int64_t element_bytes() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < program_.places.size(); ++i) {
      if (work_.slot_kind[i] == SlotKind::kElements && is_touched(i)) bytes += work_.slot_width[i];
    }
    return bytes;
  }

  // Values that compiled steps keep in registers need no slots.
  void find_touched() {
    work_.touched.assign(program_.places.size(), program_.compiled.empty() ? 1 : 0);
    if (program_.compiled.empty()) return;
    for (const ProgramStep& it : program_.steps) {
      work_.touched[it.out] = 1;
      for (const uint32_t in : it.in) work_.touched[in] = 1;
    }
    for (const CompiledArray& it : program_.arrays) work_.touched[it.place] = 1;
  }
  bool is_touched(size_t place) const { return place >= work_.touched.size() || work_.touched[place] != 0; }

  // What an entry costs, in simple steps that are interpreted.
  int64_t steps_of_entry() const {
    auto steps = static_cast<int64_t>(program_.steps.size() + 1);
    for (const ProgramStep& it : program_.steps) {
      const bool maps = it.kind == ProgramStep::Kind::kMap || it.kind == ProgramStep::Kind::kRowMap;
      if (maps && it.map.formula.operation == MapOperation::kOpaque) {
        steps += kOpaqueSteps - 1;
      } else if (it.kind == ProgramStep::Kind::kCompiled) {
        steps += program_.compiled[it.compiled].step_count / kCompiledSteps;
      }
    }
    return steps;
  }

  void choose_blocks() {
    int64_t bytes = element_bytes();
    const bool passes = bytes == 0 && program_.steps.size() == 1 && !program_.streamed;
    for (const Place& place : program_.places) {
      if (place.kind == Place::Kind::kElements) bytes += place.bytes;
    }
    const int64_t fitting_entries = kBlockBytes / std::max<int64_t>(bytes, 1);
    const int64_t entries =
        passes ? kPassedEntries : std::clamp(fitting_entries, kMinEntries, kMaxEntries) & ~int64_t{63};
    const int64_t rows = space_.rows;
    int64_t piece = program_.run;
    int64_t rows_per_block = 1;
    if (layout_ == BlockLayout::kWholeRow || layout_ == BlockLayout::kWholeRows) {
      program_.run = piece = space_.row;
      const bool by_tile = has_row_values_ && piece > kShortRow;
      const int64_t fitting = by_tile ? kTileRows : entries / std::max<int64_t>(piece, 1);
      if (layout_ == BlockLayout::kWholeRows) rows_per_block = std::clamp<int64_t>(fitting, 1, rows);
    } else {
      if (layout_ == BlockLayout::kTile) rows_per_block = std::min(kTileRows, rows);
      // Pieces of about one size, so that the last does not leave a thread idle.
      const int64_t count = divide_up(piece, std::max(entries / rows_per_block, kTileRows));
      piece = std::min(piece, (divide_up(piece, count) + 15) & ~int64_t{15});
    }
    program_.rows_per_block = rows_per_block;
    program_.piece = piece;
    program_.pieces_per_run = piece == 0 ? 1 : divide_up(program_.run, piece);
    program_.pieces = piece == 0 ? 1 : space_.row / program_.run * program_.pieces_per_run;
    program_.groups = divide_up(rows, rows_per_block);
    program_.units = program_.streamed ? program_.groups : program_.groups * program_.pieces;
    program_.stretch = divide_up(kStretch, std::max<int64_t>(rows_per_block * piece, 1));
    const int64_t entries_of_unit = rows_per_block * (program_.streamed ? space_.row : std::max<int64_t>(piece, 1));
    program_.grain = std::max<int64_t>(1, kTaskSteps / std::max<int64_t>(1, entries_of_unit * steps_of_entry()));
  }

  void lay_out_scratch() {
    int64_t at = align(static_cast<int64_t>(program_.places.size() * sizeof(void*)));
    program_.table_bytes = at;
    const int64_t rows = program_.rows_per_block;
    for (const SlotKind kind : {SlotKind::kRows, SlotKind::kStates, SlotKind::kElements}) {
      if (kind == SlotKind::kElements) program_.row_end = at;
      for (size_t i = 0; i < program_.places.size(); ++i) {
        Place& place = program_.places[i];
        if (place.kind != Place::Kind::kScratch || work_.slot_kind[i] != kind) continue;
        if (kind == SlotKind::kElements && !is_touched(i)) continue;
        place.offset = at;
        at += align(work_.slot_width[i] * rows * (kind == SlotKind::kElements ? program_.piece : 1));
      }
    }
    program_.row_begin = program_.table_bytes;
    program_.scratch_bytes = at;
    for (Place& place : program_.places) {
      if (place.kind != Place::Kind::kKept) continue;
      place.offset = program_.kept_bytes;
      program_.kept_bytes += align(place.bytes * rows * space_.row);
    }
    for (const Phase& phase : program_.phases) {
      int64_t bytes = 0;
      for (uint32_t i = phase.reductions.begin; i < phase.reductions.end; ++i) {
        program_.reductions[i].stretch_offset = bytes;
        bytes += align(program_.reductions[i].reducer->state_bytes * rows);
      }
      program_.stretch_bytes = std::max(program_.stretch_bytes, bytes);
    }
  }

  // -- Streamed rows ------------------------------------------------------------------------------

  void plan_stream(BlockLayout layout) {
    clear(layout);
    pairs_ = nullptr;  // phases read operands again, so all that may share memory is taken to
    program_.streamed = true;
    emit_constants();
    choose_phases();
    place_row_values();

    // Once to see how much would be kept, and once to emit.
    keeps_ = true;
    for (int32_t phase = last_phase_; phase >= 0; --phase) activate(phase);
    int64_t kept = 0;
    for (uint32_t v = 0; v < value_count_; ++v) {
      if (work_.kept[v]) kept += bytes_of_id(v) * space_.row * (layout == BlockLayout::kTile ? kTileRows : 1);
    }
    keeps_ = kept <= kKeptBytes;
    for (uint32_t v = 0; v < value_count_; ++v) {
      if (work_.kept[v] == 0) continue;
      work_.kept[v] = keeps_;
      const auto bytes = static_cast<uint8_t>(bytes_of_id(v));
      if (keeps_) work_.place[v] = new_place({Place::Kind::kKept, bytes, 0, 0}, SlotKind::kElements, 0);
    }

    program_.phases.resize(last_phase_ + 1);
    for (int32_t i = last_phase_; i >= 0; --i) {
      Phase& phase = program_.phases[i];
      phase.rows = emit_rows(i);
      activate(i);
      std::vector<uint32_t>& expanded_values = work_.expanded_now;
      phase.expand = emit_expansions(expanded_values);
      phase.reductions.begin = static_cast<uint32_t>(program_.reductions.size());
      phase.pieces = emit_active();
      phase.reductions.end = static_cast<uint32_t>(program_.reductions.size());
      for (const uint32_t id : expanded_values) {
        give_slot(work_.place[id]);
        work_.place[id] = kNone;
      }
    }
    program_.last = emit_rows(last_phase_ + 1);
  }

  // Which phase each store belongs to. What may share memory with something that is loaded is
  // stored last, when nothing is loaded again.
  void choose_phases() {
    work_.class_is_loaded.assign(space_.classes.size(), 0);
    last_phase_ = 0;
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (it.kind == StepKind::kLoad) work_.class_is_loaded[view(it.operand).alias_class] = 1;
      if (it.kind == StepKind::kReduce) last_phase_ = std::max(last_phase_, work_.level[it.value] - 1);
      if (it.kind == StepKind::kStore && is_element(s)) last_phase_ = std::max(last_phase_, work_.level[it.value]);
    }
    work_.store_phase.assign(step_count_, 0);
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (it.kind != StepKind::kStore || !is_element(s)) continue;
      const bool loaded = work_.class_is_loaded[view(it.operand).alias_class] != 0;
      work_.store_phase[s] = loaded ? last_phase_ : work_.level[it.value];
      // What is stored where it is computed can be read there in later phases.
      if (!loaded && !is_row(it.value) && step(work_.definition[it.value]).kind == StepKind::kMap &&
          work_.place[it.value] == kNone && lies_as_block(it.operand, false)) {
        work_.resident[it.value] = 1;
        work_.place[it.value] = operand_place(it.operand, false);
      }
    }
  }

  // Row values and the states of reductions live from phase to phase.
  void place_row_values() {
    work_.state.assign(value_count_, kNone);
    work_.row_state.assign(value_count_, kNone);
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (it.kind == StepKind::kStore || !is_row(it.value)) continue;
      if (work_.place[it.value] == kNone) work_.place[it.value] = new_slot(SlotKind::kRows, width_of(it.value));
      if (it.kind == StepKind::kReduce) {
        work_.state[it.value] = new_slot(SlotKind::kStates, it.reducer->state_bytes);
        work_.row_state[it.value] = new_slot(SlotKind::kStates, it.reducer->state_bytes);
      }
    }
  }

  // Whether computing the value again costs more than keeping it.
  bool is_worth_keeping(uint16_t value) const {
    const FusedStep& it = step(work_.definition[value]);
    if (it.kind == StepKind::kMap) return true;
    if (it.kind != StepKind::kLoad || lies_as_block(it.operand, false)) return false;
    const int64_t stride = view(it.operand).entry_stride;
    return stride != 0 && stride != view(it.operand).bytes;
  }

  // Finds the steps of a phase's pieces, backwards from what it must give.
  void activate(int32_t phase) {
    work_.active.assign(step_count_, 0);
    work_.needed.assign(value_count_, 0);
    for (int32_t s = step_count_ - 1; s >= 0; --s) {
      const FusedStep& it = step(s);
      if (!is_element(s)) continue;
      const uint16_t v = it.value;
      bool active;
      if (it.kind == StepKind::kStore) {
        active = work_.store_phase[s] == phase;
      } else if (it.kind == StepKind::kReduce) {
        active = work_.level[v] == phase + 1;
      } else {
        const bool passed_on = work_.kept[v] || work_.resident[v];
        active = !work_.constant[v] && (work_.needed[v] || (passed_on && work_.level[v] == phase));
      }
      if (!active) continue;
      work_.active[s] = 1;
      const uint16_t* inputs;
      for (int j = inputs_of(it, inputs) - 1; j >= 0; --j) {
        const uint16_t u = inputs[j];
        if (is_row(u) || work_.constant[u]) continue;
        if (work_.level[u] == phase) {
          work_.needed[u] = 1;
        } else if (work_.resident[u] || work_.kept[u]) {
          continue;
        } else if (keeps_ && is_worth_keeping(u)) {
          work_.kept[u] = 1;
        } else {
          work_.needed[u] = 1;
        }
      }
    }
  }

  // The row values whose last reduction ended with the phase before.
  Section emit_rows(int32_t phase) {
    Section section{position(), 0};
    for (int32_t s = 0; s < step_count_; ++s) {
      const FusedStep& it = step(s);
      if (it.kind == StepKind::kStore) {
        if (!is_element(s) && phase > last_phase_) emit_store(s);
        continue;
      }
      if (!is_row(it.value) || work_.constant[it.value] || work_.level[it.value] != phase) continue;
      if (it.kind == StepKind::kMap) {
        emit_map(it);
      } else if (it.kind == StepKind::kReduce) {
        ProgramStep& to = emit(ProgramStep::Kind::kFinish, true, it.value, bytes_of(it.value));
        to.in[0] = as_value(work_.row_state[it.value]);
        to.reducer = it.reducer;
      } else {
        emit_source(it);
      }
    }
    section.end = position();
    assign(section);
    return section;
  }

  // The row values that the active steps read for each point.
  Section emit_expansions(std::vector<uint32_t>& ids) {
    ids.clear();
    Section section{position(), 0};
    for (int32_t s = 0; s < step_count_; ++s) {
      if (!work_.active[s]) continue;
      const uint16_t* inputs;
      for (int j = inputs_of(step(s), inputs) - 1; j >= 0; --j) {
        const uint16_t u = inputs[j];
        if (!is_row(u) || !repeats(step(s), j) || work_.place[expanded(u)] != kNone) continue;
        work_.place[expanded(u)] = take_slot(false, width_of(u));
        ids.push_back(expanded(u));
        emit_expand(u);
      }
    }
    section.end = position();
    assign(section);
    return section;
  }

  const bool has_row_values_;
  int32_t last_phase_ = 0;
  bool keeps_ = true;
};

}  // namespace

void make_schedule(const FusedKernel& kernel, const RowSpace& space, bool has_row_values,
                   std::vector<std::pair<uint16_t, uint16_t>>* pairs, FusedProgram& program) {
  thread_local ScheduleMemory workspace;
  if (pairs != nullptr) pairs->clear();
  Scheduler(kernel, space, has_row_values, pairs, program, workspace).run();
  if (pairs != nullptr && pairs->size() > kMaxPairs) {
    pairs->clear();
    Scheduler(kernel, space, has_row_values, nullptr, program, workspace).run();
  }
}

}  // namespace hetero::backend
