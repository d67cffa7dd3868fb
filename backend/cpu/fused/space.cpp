// 1. Dimensions of size 1 are dropped.
// 2. Dimensions outside the row are sorted by stride, the smallest innermost; written operands
//    decide first. (TensorIterator's idea.)
// 3. Neighbours that all operands walk in one stride are joined, rows and row apart.
// 4. A kernel without row values gets the innermost dimension as its row.
// 5. Each operand's own views are made, and operands that could share memory are put into classes.

#include "backend/cpu/fused/space.h"

#include <algorithm>
#include <cstdlib>

namespace hetero::backend {
namespace {

struct Dimensions {
  int rank = 0;
  int source[kMaxFusedRank];  // which dimension of the FusedSpace gives the stride
  int64_t sizes[kMaxFusedRank];

  void push(int dimension, int64_t size) {
    source[rank] = dimension;
    sizes[rank++] = size;
  }
};

// Whether dimension `a` belongs inside of `b`.
bool inside(const FusedSpace& space, const std::vector<uint8_t>& stored, int a, int b) {
  for (const bool written : {true, false}) {
    for (size_t o = 0; o < stored.size(); ++o) {
      if ((stored[o] != 0) != written) continue;
      const int64_t* strides = space.operands[o].strides;
      const int64_t stride_a = std::abs(strides[a]);
      const int64_t stride_b = std::abs(strides[b]);
      if (stride_a != 0 && stride_b != 0 && stride_a != stride_b) return stride_a < stride_b;
    }
  }
  return false;
}

void sort(const FusedSpace& space, const std::vector<uint8_t>& stored, Dimensions& dimensions) {
  for (int i = 1; i < dimensions.rank; ++i) {
    for (int j = i; j > 0 && inside(space, stored, dimensions.source[j - 1], dimensions.source[j]); --j) {
      std::swap(dimensions.source[j - 1], dimensions.source[j]);
      std::swap(dimensions.sizes[j - 1], dimensions.sizes[j]);
    }
  }
}

void join(const FusedSpace& space, size_t operand_count, Dimensions& dimensions) {
  int kept = 0;
  for (int d = 1; d < dimensions.rank; ++d) {
    bool one_stride = true;
    for (size_t o = 0; o < operand_count && one_stride; ++o) {
      const int64_t* strides = space.operands[o].strides;
      one_stride = strides[dimensions.source[kept]] == strides[dimensions.source[d]] * dimensions.sizes[d];
    }
    if (one_stride) {
      dimensions.sizes[kept] *= dimensions.sizes[d];
      dimensions.source[kept] = dimensions.source[d];
    } else {
      ++kept;
      dimensions.sizes[kept] = dimensions.sizes[d];
      dimensions.source[kept] = dimensions.source[d];
    }
  }
  if (dimensions.rank > 0) dimensions.rank = kept + 1;
}

// Collapses dimensions [begin, end) as far as one operand allows.
LinearView make_view(const int64_t* sizes, const int64_t* strides, int begin, int end) {
  LinearView view;
  if (begin == end) return view;
  int kept = 0;
  view.sizes[0] = sizes[begin];
  view.strides[0] = strides[begin];
  for (int d = begin + 1; d < end; ++d) {
    if (view.strides[kept] == strides[d] * sizes[d]) {
      view.sizes[kept] *= sizes[d];
    } else {
      view.sizes[++kept] = sizes[d];
    }
    view.strides[kept] = strides[d];
  }
  view.rank = kept + 1;
  return view;
}

bool is_dense(const LinearView& view, int64_t bytes) {
  return view.rank == 1 && (view.strides[0] == bytes || view.sizes[0] == 1);
}
bool is_one(const LinearView& view) { return view.rank == 1 && (view.strides[0] == 0 || view.sizes[0] == 1); }

// Steps 1 to 4: the dimensions outside of the row, and those of it.
void find_dimensions(const FusedSpace& space, bool has_row_values, const std::vector<uint8_t>& stored,
                     Dimensions& outer, Dimensions& inner) {
  const int first_of_row = has_row_values ? space.rank - space.row_rank : space.rank;
  for (int d = 0; d < space.rank; ++d) {
    if (space.sizes[d] != 1) (d < first_of_row ? outer : inner).push(d, space.sizes[d]);
  }
  sort(space, stored, outer);
  join(space, stored.size(), outer);
  join(space, stored.size(), inner);
  if (!has_row_values && outer.rank > 0) {
    --outer.rank;
    inner.push(outer.source[outer.rank], outer.sizes[outer.rank]);
  }
}

// A transposed operand is copied in tiles, which wants the dimension of its small stride next to
// the row. Whether there is one.
bool move_transposed(const FusedSpace& space, size_t operand_count, const Dimensions& inner, Dimensions& outer) {
  for (size_t o = 0; o < operand_count && inner.rank > 0; ++o) {
    const FusedOperand& operand = space.operands[o];
    const int64_t along_row = std::abs(operand.strides[inner.source[inner.rank - 1]]);
    for (int d = outer.rank - 1; d >= 0 && along_row > operand.bytes; --d) {
      const int64_t along_rows = std::abs(operand.strides[outer.source[d]]);
      if (along_rows == 0 || along_rows >= along_row) continue;
      std::rotate(outer.source + d, outer.source + d + 1, outer.source + outer.rank);
      std::rotate(outer.sizes + d, outer.sizes + d + 1, outer.sizes + outer.rank);
      return true;
    }
  }
  return false;
}

// Fills the sizes, and `source`: which dimension of the FusedSpace gives the strides of each.
void set_sizes(const Dimensions& outer, const Dimensions& inner, int* source, RowSpace& result) {
  result.outer_rank = outer.rank;
  result.rank = outer.rank + inner.rank;
  result.rows = result.row = 1;
  for (int d = 0; d < outer.rank; ++d) {
    source[d] = outer.source[d];
    result.sizes[d] = outer.sizes[d];
    result.rows *= outer.sizes[d];
  }
  for (int d = 0; d < inner.rank; ++d) {
    source[outer.rank + d] = inner.source[d];
    result.sizes[outer.rank + d] = inner.sizes[d];
    result.row *= inner.sizes[d];
  }
  result.segment = inner.rank > 0 ? inner.sizes[inner.rank - 1] : 1;
  result.inner_rows = outer.rank > 0 ? outer.sizes[outer.rank - 1] : 1;
}

// `strides`: of the operand, along the dimensions of the result.
void set_view(const FusedOperand& operand, const int64_t* strides, const RowSpace& result, OperandView& view) {
  const bool has_row = result.rank > result.outer_rank;
  view.offset = operand.offset;
  view.bytes = static_cast<int32_t>(operand.bytes);
  view.table_stride = operand.table_stride;
  view.entries = make_view(result.sizes, strides, 0, result.rank);
  view.in_row = make_view(result.sizes, strides, result.outer_rank, result.rank);
  view.by_row = make_view(result.sizes, strides, 0, result.outer_rank);
  view.entry_stride = has_row ? strides[result.rank - 1] : 0;
  view.row_stride = result.outer_rank > 0 ? strides[result.outer_rank - 1] : 0;
  view.dense = is_dense(view.entries, view.bytes);
  view.dense_row = is_dense(view.in_row, view.bytes);
  view.dense_segment = view.entry_stride == view.bytes || !has_row;
  view.dense_rows = is_dense(view.by_row, view.bytes);
  view.same_in_row = is_one(view.in_row);
  view.same_for_rows = is_one(view.by_row);
}

// The class of an operand with these strides; a new one where no operand before it is alike.
int32_t find_class(const FusedSpace& space, size_t operand, const int64_t* strides, const int* source,
                   RowSpace& result) {
  for (const uint32_t first : result.classes) {
    const FusedOperand& earlier = space.operands[first];
    bool same = earlier.bytes == space.operands[operand].bytes;
    for (int d = 0; d < result.rank && same; ++d) same = earlier.strides[source[d]] == strides[d];
    if (same) return result.operands[first].alias_class;
  }
  result.classes.push_back(static_cast<uint32_t>(operand));
  return static_cast<int32_t>(result.classes.size() - 1);
}

}  // namespace

void make_row_space(const FusedSpace& space, bool has_row_values, const std::vector<uint8_t>& stored,
                    RowSpace& result) {
  const size_t operand_count = stored.size();
  Dimensions outer;
  Dimensions inner;
  find_dimensions(space, has_row_values, stored, outer, inner);
  result.transposed = move_transposed(space, operand_count, inner, outer);
  int source[kMaxFusedRank];
  set_sizes(outer, inner, source, result);
  result.operands.resize(operand_count);
  result.classes.clear();
  for (size_t o = 0; o < operand_count; ++o) {
    int64_t strides[kMaxFusedRank];
    for (int d = 0; d < result.rank; ++d) strides[d] = space.operands[o].strides[source[d]];
    set_view(space.operands[o], strides, result, result.operands[o]);
    result.operands[o].alias_class = find_class(space, o, strides, source, result);
  }
}

}  // namespace hetero::backend
