// FusedProgram: a fused kernel laid out for one space, as run_fused walks it.
//
// The space is cut into blocks of `rows_per_block` rows times `piece` entries. A place is an
// address that a step reads or writes for the current block. It is an array of scratch memory, or
// an operand's own memory if its entries are laid out as the step needs them. The places form a
// table of addresses. So a step is a few loads from the table and a call:
//
//   task:     once for each task: values that are equal in all blocks
//   phase[i]
//     .rows   once for each group of rows: values with one entry per row
//     .expand once for each group of rows: row values repeated along a piece
//     .pieces for each piece of the rows: values with one entry per point; reductions are fed
//   last:     once for each group of rows, after the last phase
//
// If a block holds whole rows, or there are no row values, there is one phase, and its `pieces` has
// every step. Longer rows are streamed: a reduction ends its phase, and later phases recompute
// values or have them kept for the whole row.

#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "backend/fused/kernel.h"

namespace hetero::backend {

struct VectorCode;  // compile.h

// Of ProgramStep::last_read: other sections, or later blocks, read it.
inline constexpr uint32_t kReadLater = std::numeric_limits<uint32_t>::max();

struct ProgramStep {
  enum class Kind : uint8_t {
    kMap,       // out <- map(in)
    kRowMap,    // out <- map(in[0]; the one entry of each other input as a number)
    kGather,    // out <- operand
    kScatter,   // operand <- in[0]
    kCopy,      // out <- in[0]
    kFill,      // out <- a number
    kExpand,    // out <- in[0], a row value, repeated along the rows
    kLookUp,    // out <- the rows of operand, a table, at the indices in[0]
    kOneHot,    // out <- in[0], a row value, at the row's index in[1]; zeros elsewhere
    kReduce,    // out <- reducer over the whole rows of in[0], with parameters in[1]
    kAdd,       // states at out <- a piece of the rows of in[0]
    kFinish,    // out <- result of the states at in[0]
    kCompiled,  // many maps at once
  };
  Kind kind;
  bool row;           // one entry for each row rather than for each point
  uint8_t bytes;      // of an entry; of the input's where the step reduces
  uint8_t out_bytes;  // of an entry of the result
  uint8_t input_count;
  uint16_t operand;
  uint16_t first_number;
  uint32_t out;  // places
  uint32_t in[4];
  uint32_t last_read;  // the last step of the section that reads `out`, before steps were compiled
  union {
    MapFunction map;
    const Reducer* reducer;
    uint32_t compiled;  // of FusedProgram::compiled
  };
};

struct Section {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Steps that became one (compile.h), and what they read and write.
struct CompiledArray {
  uint32_t place;
  uint8_t bytes;  // of an entry
  bool read;
  bool written;
};
struct CompiledRun {
  std::shared_ptr<const VectorCode> code;
  Section arrays;  // of FusedProgram::arrays
  uint16_t first_number;
  uint16_t step_count;
};

struct Phase {
  Section rows;
  Section expand;
  Section pieces;
  Section reductions;  // of FusedProgram::reductions: those fed in this phase
};

// A reduction of a streamed row. Long rows are reduced in stretches, each with states of its own,
// which are merged in order: the result does not depend on the number of threads.
struct StreamedReduction {
  const Reducer* reducer;
  uint32_t parameter;      // place: one entry for each row, where the reducer has a parameter
  uint32_t state;          // place: one state for each row, of the stretch at hand
  uint32_t row_state;      // place: of the row so far
  int64_t stretch_offset;  // bytes into the states that a stretch leaves for another thread
};

struct Place {
  enum class Kind : uint8_t {
    kScratch,   // offset: bytes into the scratch memory
    kElements,  // an operand's entries, from the block's first
    kRows,      // an operand's entries, one for each row, from the block's first
    kKept,      // offset: bytes into the kept memory, of the row's first piece
  };
  Kind kind;
  uint8_t bytes;  // of an entry
  uint16_t operand;
  int64_t offset;
};

struct FusedProgram {
  std::vector<ProgramStep> steps;
  Section task;
  std::vector<Phase> phases;
  Section last;
  std::vector<StreamedReduction> reductions;
  std::vector<CompiledRun> compiled;
  std::vector<CompiledArray> arrays;
  std::vector<Place> places;
  std::vector<uint32_t> moving;  // the places that are not kScratch

  int64_t rows_per_block = 1;
  int64_t piece = 1;   // entries of a row in a block
  int64_t pieces = 1;  // of a row
  int64_t run = 1;     // pieces do not cross multiples of this many entries
  int64_t pieces_per_run = 1;
  int64_t groups = 1;     // of rows
  bool streamed = false;  // a unit of work is a group of rows; else it is one block
  int64_t units = 1;
  int64_t grain = 1;    // units
  int64_t stretch = 1;  // pieces; streamed only

  int64_t table_bytes = 0;  // scratch memory: the table of places,
  int64_t row_begin = 0;    // then row values and states, which phases pass on,
  int64_t row_end = 0;
  int64_t scratch_bytes = 0;  // then arrays of a block's size
  int64_t kept_bytes = 0;     // apart: what is kept of the rows from phase to phase
  int64_t stretch_bytes = 0;  // the states that a stretch leaves for another thread
};

}  // namespace hetero::backend
