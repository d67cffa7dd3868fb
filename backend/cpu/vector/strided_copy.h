// Copies between an operand's memory, laid out with any strides, and a dense array in scratch
// memory.
//
// The loops are specialised by the size of an entry (1, 2, 4, 8 or 16 bytes) and by the innermost
// stride: dense runs are copied, stride 0 is a fill, and a transposed operand is walked in small
// tiles so that each cache line is fetched once. Addresses need no alignment.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/fused/kernel.h"

namespace hetero::backend {

// The place of the entry with linear index i: `sizes` decompose i, row-major, and `strides` weight
// the parts.
struct LinearView {
  int rank = 1;  // at least 1
  int64_t sizes[kMaxFusedRank] = {1};
  int64_t strides[kMaxFusedRank] = {};  // bytes

  int64_t offset(int64_t index) const {
    int64_t bytes = 0;
    for (int d = rank - 1; d > 0; --d) {
      bytes += index % sizes[d] * strides[d];
      index /= sizes[d];
    }
    return bytes + index * strides[0];
  }
};

// dense[0..count) <- entries [first, first + count) of the view, and the reverse. `base` is the
// address of entry 0.
void gather(void* dense, const char* base, const LinearView& view, int64_t first, int64_t count, int bytes);
void scatter(const void* dense, char* base, const LinearView& view, int64_t first, int64_t count, int bytes);

// The same for rows x columns entries with two strides; row-major in `dense`.
void gather_tile(void* dense, const char* base, int64_t rows, int64_t row_stride, int64_t columns,
                 int64_t column_stride, int bytes);
void scatter_tile(const void* dense, char* base, int64_t rows, int64_t row_stride, int64_t columns,
                  int64_t column_stride, int bytes);

// to[c * to_stride + r * bytes] <- from[r * from_stride + c * bytes], for rows x columns entries.
void transpose(const char* from, int64_t from_stride, int64_t rows, int64_t columns, char* to, int64_t to_stride,
               int bytes);

// out[j * count .. (j + 1) * count) <- entries[j] for 0 <= j < rows.
void repeat(void* out, const void* entries, int64_t rows, int64_t count, int bytes);

}  // namespace hetero::backend
