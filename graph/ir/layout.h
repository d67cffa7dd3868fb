// Layout: the places of a storage's bytes in a block that has room between them.
//
// A tensor may grow along a dimension that is not its first, as a decoder's keys and values do. It
// then moves all its rows at each step, unless there is room between them. To PyTorch the rows stay
// adjacent: windows count elements of the storage. Kernels get windows of the block, made by
// place().
//
// Thread safety: plain data.

#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/ir/window.h"

namespace hetero::graph {

// Row r, `row_bytes` long, begins at byte r * pitch_bytes of the block. Both are 0 if the block has
// no gaps.
struct Layout {
  uint64_t row_bytes = 0;
  uint64_t pitch_bytes = 0;

  bool has_gaps() const { return row_bytes != 0; }
  // How large the block of a storage of so many bytes is.
  uint64_t block_bytes(uint64_t storage_bytes) const {
    return has_gaps() ? storage_bytes / row_bytes * pitch_bytes : storage_bytes;
  }
  bool operator==(const Layout&) const = default;
};

// Rows of `row_bytes` every `pitch_bytes`; no gaps if they are equal. REQUIRES: row_bytes <=
// pitch_bytes, neither is 0.
Layout rows_apart(uint64_t row_bytes, uint64_t pitch_bytes);

// The window of the block that sees what `window` sees of the storage. kNoWindow where none does: a
// dimension runs over the end of a row.
WindowId place(WindowTable& windows, WindowId window, const Layout& layout);

// Copies a storage's bytes out of its block.
void copy_rows(void* storage, const void* block, uint64_t storage_bytes, const Layout& layout);

}  // namespace hetero::graph
