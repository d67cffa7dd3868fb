// RowSpace: the space of a fused kernel as rows of entries, with as few dimensions as its operands
// allow.
//
// Dimensions of size 1 are dropped. Strides choose the order of those outside the row. Neighbours
// that every operand walks in one stride become one. A kernel without row values has no row; the
// innermost remaining dimension then serves as the row.
//
//   sizes[0 .. outer_rank)     the rows, `rows` in number
//   sizes[outer_rank .. rank)  the entries of a row, `row` in number, in row-major order (reducers
//                              rely on it)
//
// An entry has the linear index `row number * row + place in the row`. Each operand has its own
// view of this index, with dimensions collapsed as far as this operand allows.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/vector/strided_copy.h"
#include "backend/fused/kernel.h"

namespace hetero::backend {

struct OperandView {
  int64_t offset = 0;  // bytes from the address to the first entry
  int32_t bytes = 0;   // of an entry
  // Operands of different classes cannot share memory: they would not address every point at the
  // same bytes.
  int32_t alias_class = 0;
  bool dense = false;          // the whole space lies without gaps in the order of the linear index
  bool dense_row = false;      // so does each row
  bool dense_segment = false;  // so does each run over the innermost dimension of the row
  bool dense_rows = false;     // read as a row value: one entry for each row, without gaps
  bool same_in_row = false;    // all entries of a row are one
  bool same_for_rows = false;  // all rows are one
  int64_t entry_stride = 0;    // along the innermost dimension of the row
  int64_t row_stride = 0;      // from row to row, along the innermost dimension of the rows
  int64_t table_stride = 0;    // of a table
  LinearView entries;          // over the whole linear index
  LinearView in_row;           // over one row
  LinearView by_row;           // over the row numbers
};

struct RowSpace {
  int outer_rank = 0;
  int rank = 0;
  int64_t sizes[kMaxFusedRank] = {};
  int64_t rows = 1;
  int64_t row = 1;
  int64_t segment = 1;     // the size of the innermost dimension of the row
  int64_t inner_rows = 1;  // the size of the innermost dimension of the rows
  // Neighbours in a row lie far apart in some operand, neighbouring rows close together.
  bool transposed = false;
  std::vector<OperandView> operands;
  std::vector<uint32_t> classes;  // the first operand of each alias class
};

// REQUIRES: a legal space; `stored` tells for each operand whether it is written.
void make_row_space(const FusedSpace& space, bool has_row_values, const std::vector<uint8_t>& stored, RowSpace& result);

}  // namespace hetero::backend
