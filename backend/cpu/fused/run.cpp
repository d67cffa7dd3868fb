// run_fused: walks a program over its blocks, split over parallel_for.
//
// A Task is one thread's walk: scratch memory of the thread, the table of places in it, and the
// steps. Where there are fewer groups of long rows than threads, a group's pieces are split as
// well: the caller computes the row values, and for each phase tasks take them over, reduce
// stretches of the rows into states of their own, and leave these to the caller, who merges them in
// order.

#include <algorithm>
#include <cstring>

#include "backend/base/parallel.h"
#include "backend/cpu/fused/compile.h"
#include "backend/cpu/fused/launch.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// A caller that splits rows needs its memory while it works on a part of them like the others.
thread_local Scratch task_scratch;
thread_local Scratch caller_scratch;
thread_local Scratch stage_scratch;

class Task {
 public:
  Task(const FusedLaunch& launch, const FusedProgram& program, void* const* operands, const Number* numbers,
       char* scratch, char* kept)
      : space_(launch.space),
        program_(program),
        operands_(operands),
        numbers_(numbers),
        scratch_(scratch),
        kept_(kept),
        table_(reinterpret_cast<char**>(scratch)) {
    const auto count = program.places.size();
    for (size_t i = 0; i < count; ++i) table_[i] = scratch + program.places[i].offset;
    entries_ = program.rows_per_block * program.piece;
    rows_ = program.rows_per_block;
    piece_ = program.piece;
    if (program.task.end != program.task.begin) run(program.task);
  }

  // Whole blocks, one phase.
  void run_blocks(int64_t begin, int64_t end) {
    const Section steps = program_.phases[0].pieces;
    for (int64_t unit = begin; unit < end; ++unit) {
      int64_t group = 0;
      int64_t piece = unit;
      if (program_.groups > 1) {
        group = unit / program_.pieces;
        piece = unit % program_.pieces;
      }
      start_group(group);
      start_piece(piece);
      if (unit + 1 < end) prefetch_next();
      run(steps);
    }
  }

  // Entries of one row, or whole rows; one phase.
  void run_part(int64_t begin, int64_t end) {
    const Section steps = program_.phases[0].pieces;
    if (space_.rows == 1) {
      start_group(0);
      for (int64_t entry = begin; entry < end; entry += program_.piece) {
        start_entries(entry, std::min(program_.piece, end - entry));
        run(steps);
      }
      return;
    }
    const int64_t last = end / space_.row;
    for (row_ = begin / space_.row; row_ < last; row_ += rows_) {
      rows_ = std::min(program_.rows_per_block, last - row_);
      start_entries(0, space_.row);
      run(steps);
    }
  }

  void run_groups(int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      start_group(group);
      for (const Phase& phase : program_.phases) {
        run(phase.rows);
        expand(phase);
        for (int64_t first = 0; first < program_.pieces; first += program_.stretch) {
          run_stretch(phase, first);
          collect(phase, first == 0, [&](const StreamedReduction& it) { return table_[it.state]; });
        }
      }
      run(program_.last);
    }
  }

  void start_group(int64_t group) {
    row_ = group * program_.rows_per_block;
    rows_ = std::min(program_.rows_per_block, space_.rows - row_);
  }

  // Repeats row values along a whole piece, though the piece at hand may be the last and shorter.
  void expand(const Phase& phase) { expand(phase, program_.piece); }

  // Points the moving places at a block. An empty row has no first entry.
  void start_piece(int64_t piece) {
    int64_t run = 0;
    if (program_.pieces != program_.pieces_per_run) {
      run = piece / program_.pieces_per_run;
      piece %= program_.pieces_per_run;
    }
    const int64_t in_run = piece * program_.piece;
    start_entries(run * program_.run + in_run, std::min(program_.piece, program_.run - in_run));
  }

  void start_entries(int64_t entry, int64_t count) {
    entry_ = entry;
    piece_ = count;
    entries_ = rows_ * piece_;
    for (const uint32_t index : program_.moving) {
      const Place& place = program_.places[index];
      if (place.kind == Place::Kind::kKept) {
        table_[index] = kept_ + place.offset + entry_ * program_.rows_per_block * place.bytes;
        continue;
      }
      const OperandView& view = space_.operands[place.operand];
      char* address = address_of(place.operand) + view.by_row.offset(row_);
      if (place.kind == Place::Kind::kElements && entries_ > 0) address += view.in_row.offset(entry_);
      table_[index] = address;
    }
  }

  // While a block is worked on, the memory of the next one comes nearer: hardware does not look
  // beyond a page, which is a short row.
  void prefetch_next() const {
    constexpr int64_t kLine = 64;
    constexpr int64_t kMaxBytes = 32 << 10;
    const int64_t next = rows_ * piece_;
    for (const uint32_t index : program_.moving) {
      const Place& place = program_.places[index];
      if (place.kind != Place::Kind::kElements || space_.operands[place.operand].same_for_rows) continue;
      const int64_t bytes = next * place.bytes;
      const char* const from = table_[index] + bytes;
      for (int64_t at = 0; at < std::min(bytes, kMaxBytes); at += kLine) __builtin_prefetch(from + at, 0, 3);
    }
  }

  // One stretch of the rows' pieces, reduced into states of its own.
  void run_stretch(const Phase& phase, int64_t first) {
    for (uint32_t i = phase.reductions.begin; i < phase.reductions.end; ++i) {
      const StreamedReduction& it = program_.reductions[i];
      for (int64_t j = 0; j < rows_; ++j) {
        begin(*it.reducer, table_[it.state] + j * it.reducer->state_bytes, it.parameter, j);
      }
    }
    const int64_t end = std::min(first + program_.stretch, program_.pieces);
    for (int64_t piece = first; piece < end; ++piece) {
      start_piece(piece);
      if (rows_ > 1 && piece_ != expanded_piece_) expand(phase, piece_);  // rows lie closer
      run(phase.pieces);
    }
  }

  // Adds the states of a later stretch, found by `states_of`, to those of the rows.
  template <typename StatesOf>
  void collect(const Phase& phase, bool first, StatesOf states_of) {
    for (uint32_t i = phase.reductions.begin; i < phase.reductions.end; ++i) {
      const StreamedReduction& it = program_.reductions[i];
      const char* states = states_of(it);
      char* row_states = table_[it.row_state];
      const int64_t bytes = it.reducer->state_bytes;
      if (first) {
        std::memcpy(row_states, states, static_cast<size_t>(bytes * rows_));
      } else {
        for (int64_t j = 0; j < rows_; ++j) it.reducer->merge(row_states + j * bytes, states + j * bytes);
      }
    }
  }

  // Takes over what another task computed for the rows.
  void take_rows(const Task& other) {
    row_ = other.row_;
    rows_ = other.rows_;
    std::memcpy(scratch_ + program_.row_begin, other.scratch_ + program_.row_begin,
                static_cast<size_t>(program_.row_end - program_.row_begin));
  }
  void give_states(const Phase& phase, char* to) const {
    for (uint32_t i = phase.reductions.begin; i < phase.reductions.end; ++i) {
      const StreamedReduction& it = program_.reductions[i];
      std::memcpy(to + it.stretch_offset, table_[it.state], static_cast<size_t>(it.reducer->state_bytes * rows_));
    }
  }

  void run(Section section) {
    const ProgramStep* const end = program_.steps.data() + section.end;
    for (const ProgramStep* it = program_.steps.data() + section.begin; it != end; ++it) {
      const int64_t count = it->row ? rows_ : entries_;
      char* const out = table_[it->out];
      switch (it->kind) {
        case ProgramStep::Kind::kMap: {
          const void* const in[4] = {table_[it->in[0]], table_[it->in[1]], table_[it->in[2]], table_[it->in[3]]};
          it->map(out, in, numbers_ + it->first_number, count);
          break;
        }
        case ProgramStep::Kind::kRowMap: {
          Number entries[3];
          for (int j = 1; j < it->input_count; ++j) std::memcpy(&entries[j - 1], table_[it->in[j]], it->bytes);
          const void* const in[4] = {table_[it->in[0]]};
          it->map(out, in, entries, count);
          break;
        }
        case ProgramStep::Kind::kCompiled:
          run_compiled(program_, program_.compiled[it->compiled], table_, numbers_, count);
          break;
        case ProgramStep::Kind::kCopy:
          // Loaded and stored at one address: memcpy must not be asked for it.
          if (out != table_[it->in[0]]) std::memcpy(out, table_[it->in[0]], static_cast<size_t>(count * it->bytes));
          break;
        case ProgramStep::Kind::kFill:
          repeat(out, numbers_ + it->first_number, 1, count, it->bytes);
          break;
        case ProgramStep::Kind::kExpand:
          repeat(out, table_[it->in[0]], rows_, piece_, it->bytes);
          break;
        case ProgramStep::Kind::kLookUp:
          look_up(*it, out);
          break;
        case ProgramStep::Kind::kOneHot:
          one_hot(*it, out);
          break;
        case ProgramStep::Kind::kGather:
          load(*it, out);
          break;
        case ProgramStep::Kind::kScatter:
          store(*it, out);
          break;
        case ProgramStep::Kind::kReduce:
          reduce(*it, out);
          break;
        case ProgramStep::Kind::kAdd:
          for (int64_t j = 0; j < rows_; ++j) {
            it->reducer->add(out + j * it->reducer->state_bytes, table_[it->in[0]] + j * piece_ * it->bytes, piece_,
                             entry_);
          }
          break;
        case ProgramStep::Kind::kFinish:
          for (int64_t j = 0; j < rows_; ++j) {
            it->reducer->finish(table_[it->in[0]] + j * it->reducer->state_bytes, out + j * it->bytes);
          }
          break;
      }
    }
  }

 private:
  void expand(const Phase& phase, int64_t piece) {
    piece_ = expanded_piece_ = piece;
    run(phase.expand);
  }

  char* address_of(uint16_t operand) const {
    return static_cast<char*>(operands_[operand]) + space_.operands[operand].offset;
  }

  // `parameter`: a place, with one entry for each row.
  void begin(const Reducer& reducer, char* state, uint32_t parameter, int64_t row) const {
    if (reducer.parameter_bytes == 0) return reducer.begin(state);
    reducer.begin_with(state, table_[parameter] + row * reducer.parameter_bytes);
  }

  void look_up(const ProgramStep& step, char* out) const {
    if (piece_ == 0) return;
    const OperandView& view = space_.operands[step.operand];
    for (int64_t j = 0; j < rows_; ++j) {
      int64_t index;
      std::memcpy(&index, table_[step.in[0]] + j * static_cast<int64_t>(sizeof(index)), sizeof(index));
      gather(out + j * piece_ * step.bytes, address_of(step.operand) + index * view.table_stride, view.in_row, entry_,
             piece_, step.bytes);
    }
  }

  void one_hot(const ProgramStep& step, char* out) const {
    const int64_t bytes = step.bytes;
    for (int64_t j = 0; j < rows_; ++j, out += piece_ * bytes) {
      // A row of one entry may be where the inputs are.
      char entry[16];
      int64_t index;
      std::memcpy(entry, table_[step.in[0]] + j * bytes, static_cast<size_t>(bytes));
      std::memcpy(&index, table_[step.in[1]] + j * static_cast<int64_t>(sizeof(index)), sizeof(index));
      std::memset(out, 0, static_cast<size_t>(piece_ * bytes));
      index -= entry_;
      if (index >= 0 && index < piece_) std::memcpy(out + index * bytes, entry, static_cast<size_t>(bytes));
    }
  }

  void reduce(const ProgramStep& step, char* out) const {
    alignas(64) char state[kMaxReducerState];
    const Reducer& reducer = *step.reducer;
    const char* in = table_[step.in[0]];
    const int64_t row_bytes = piece_ * step.bytes;
    for (int64_t j = 0; j < rows_; ++j) {
      begin(reducer, state, step.in[1], j);
      if (piece_ > 0) reducer.add(state, in + j * row_bytes, piece_, 0);
      reducer.finish(state, out + j * step.out_bytes);
    }
  }

  void load(const ProgramStep& step, char* out) const {
    const OperandView& view = space_.operands[step.operand];
    const char* base = address_of(step.operand);
    if (step.row) return gather(out, base, view.by_row, row_, rows_, step.bytes);
    if (entries_ == 0) return;
    if (rows_ == 1) {
      return gather(out, base + view.by_row.offset(row_), view.in_row, entry_, piece_, step.bytes);
    }
    if (piece_ == space_.row) return gather(out, base, view.entries, row_ * space_.row, entries_, step.bytes);
    if (program_.run != space_.segment) {
      for (int64_t j = 0; j < rows_; ++j) {
        gather(out + j * piece_ * step.bytes, base + view.by_row.offset(row_ + j), view.in_row, entry_, piece_,
               step.bytes);
      }
      return;
    }
    for_tiles(view, [&](int64_t j, int64_t rows, int64_t offset) {
      gather_tile(out + j * piece_ * step.bytes, base + offset, rows, view.row_stride, piece_, view.entry_stride,
                  step.bytes);
    });
  }

  void store(const ProgramStep& step, const char* in) const {
    const OperandView& view = space_.operands[step.operand];
    char* base = address_of(step.operand);
    if (step.row) return scatter(in, base, view.by_row, row_, rows_, step.bytes);
    if (entries_ == 0) return;
    if (rows_ == 1) {
      return scatter(in, base + view.by_row.offset(row_), view.in_row, entry_, piece_, step.bytes);
    }
    if (piece_ == space_.row) return scatter(in, base, view.entries, row_ * space_.row, entries_, step.bytes);
    if (program_.run != space_.segment) {
      for (int64_t j = 0; j < rows_; ++j) {
        scatter(in + j * piece_ * step.bytes, base + view.by_row.offset(row_ + j), view.in_row, entry_, piece_,
                step.bytes);
      }
      return;
    }
    for_tiles(view, [&](int64_t j, int64_t rows, int64_t offset) {
      scatter_tile(in + j * piece_ * step.bytes, base + offset, rows, view.row_stride, piece_, view.entry_stride,
                   step.bytes);
    });
  }

  // The block is several rows' pieces, each inside of one run. Cuts it where its rows leave the
  // innermost dimension of the rows.
  template <typename Body>
  void for_tiles(const OperandView& view, Body&& body) const {
    const int64_t offset_in_row = view.in_row.offset(entry_);
    for (int64_t j = 0; j < rows_;) {
      const int64_t rows = std::min(rows_ - j, space_.inner_rows - (row_ + j) % space_.inner_rows);
      body(j, rows, view.by_row.offset(row_ + j) + offset_in_row);
      j += rows;
    }
  }

  const RowSpace& space_;
  const FusedProgram& program_;
  void* const* const operands_;
  const Number* const numbers_;
  char* const scratch_;
  char* const kept_;
  char** const table_;
  // The block at hand.
  int64_t row_ = 0;
  int64_t rows_ = 1;
  int64_t entry_ = 0;
  int64_t piece_ = 1;
  int64_t expanded_piece_ = 0;  // along which row values are repeated
  int64_t entries_ = 1;
};

void run_split(const FusedLaunch& launch, const FusedProgram& program, void* const* operands, const Number* numbers) {
  const int64_t stretches = (program.pieces + program.stretch - 1) / program.stretch;
  char* memory =
      caller_scratch.get<char>(program.scratch_bytes + program.kept_bytes + stretches * program.stretch_bytes);
  char* kept = memory + program.scratch_bytes;
  char* states = kept + program.kept_bytes;
  Task caller(launch, program, operands, numbers, memory, kept);
  for (int64_t group = 0; group < program.groups; ++group) {
    caller.start_group(group);
    for (const Phase& phase : program.phases) {
      caller.run(phase.rows);
      parallel_for(0, stretches, 1, [&](int64_t begin, int64_t end) {
        Task task(launch, program, operands, numbers, task_scratch.get<char>(program.scratch_bytes), kept);
        task.take_rows(caller);
        task.expand(phase);
        for (int64_t stretch = begin; stretch < end; ++stretch) {
          task.run_stretch(phase, stretch * program.stretch);
          task.give_states(phase, states + stretch * program.stretch_bytes);
        }
      });
      for (int64_t stretch = 0; stretch < stretches; ++stretch) {
        caller.collect(phase, stretch == 0, [&](const StreamedReduction& it) {
          return states + stretch * program.stretch_bytes + it.stretch_offset;
        });
      }
    }
    caller.run(program.last);
  }
}

const FusedProgram& program_for(const FusedLaunch& launch, void* const* operands) {
  for (const auto& [a, b] : launch.pairs) {
    const char* first = static_cast<const char*>(operands[a]) + launch.space.operands[a].offset;
    const char* second = static_cast<const char*>(operands[b]) + launch.space.operands[b].offset;
    if (first == second) return launch.careful;
  }
  return launch.program;
}

// Whether blocks are stretches of one row, or whole rows.
bool has_parts(const FusedProgram& program, const RowSpace& space) {
  if (program.streamed) return false;
  return space.rows == 1 ? program.run == space.row : program.piece == space.row;
}

void run_program(const FusedLaunch& launch, void* const* operands, const Number* numbers) {
  if (launch.empty) return;
  const FusedProgram& program = program_for(launch, operands);
  if (program.streamed && program.pieces > program.stretch && program.groups < thread_count()) {
    return run_split(launch, program, operands, numbers);
  }
  parallel_for(0, program.units, program.grain, [&](int64_t begin, int64_t end) {
    char* scratch = task_scratch.get<char>(program.scratch_bytes + program.kept_bytes);
    Task task(launch, program, operands, numbers, scratch, scratch + program.scratch_bytes);
    program.streamed ? task.run_groups(begin, end) : task.run_blocks(begin, end);
  });
}

// A stage's operands are the kernel's and what stages pass on in the memory of the thread.
bool run_stages(const FusedLaunch& launch, void* const* operands, const Number* numbers) {
  char* memory = stage_scratch.get<char>(launch.temporary_bytes + launch.max_stage_operands * int64_t{sizeof(void*)});
  void** const addresses = reinterpret_cast<void**>(memory + launch.temporary_bytes);
  for (const FusedStage& stage : launch.stages) {
    size_t count = 0;
    for (const StageOperand& it : stage.operands) {
      addresses[count++] = it.is_temporary ? memory + it.offset : operands[it.operand];
    }
    run_program(stage.launch, addresses, numbers);
    for (const int64_t check : stage.checks) {
      if (memory[check] == 0) return false;
    }
  }
  return true;
}

}  // namespace

bool run_fused(const FusedLaunch& launch, void* const* operands, const Number* numbers) {
  if (!launch.stages.empty()) return run_stages(launch, operands, numbers);
  run_program(launch, operands, numbers);
  return true;
}

int64_t part_entries(const FusedLaunch& launch) {
  if (launch.empty || !launch.stages.empty() || !has_parts(launch.program, launch.space)) return 0;
  if (!launch.pairs.empty() && !has_parts(launch.careful, launch.space)) return 0;
  return launch.space.rows == 1 && !launch.has_row_values ? 1 : launch.space.row;
}

void run_fused_part(const FusedLaunch& launch, void* const* operands, const Number* numbers, int64_t begin,
                    int64_t end) {
  const FusedProgram& program = program_for(launch, operands);
  Task(launch, program, operands, numbers, task_scratch.get<char>(program.scratch_bytes), nullptr).run_part(begin, end);
}

}  // namespace hetero::backend
