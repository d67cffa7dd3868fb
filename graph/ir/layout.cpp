#include "graph/ir/layout.h"

#include <cstring>
#include <vector>

namespace hetero::graph {
namespace {

// A layout, in elements of a window.
struct Rows {
  int64_t length;
  int64_t pitch;

  int64_t place(int64_t offset) const { return offset / length * pitch + offset % length; }
};

// Whether each dimension goes from row to row, or stays in one together with the others that do.
bool keeps_to_rows(const Window& window, int64_t row_length) {
  if (window.numel == 0) return true;
  int64_t last = window.offset % row_length;
  for (int d = 0; d < window.rank; ++d) {
    const int64_t stride = window.strides()[d];
    if (stride % row_length != 0) last += (window.sizes()[d] - 1) * stride;
  }
  return last < row_length;
}

}  // namespace

Layout rows_apart(uint64_t row_bytes, uint64_t pitch_bytes) {
  return row_bytes == pitch_bytes ? Layout() : Layout{row_bytes, pitch_bytes};
}

WindowId place(WindowTable& windows, WindowId id, const Layout& layout) {
  if (!layout.has_gaps()) return id;
  const Window& window = windows[id];
  const auto item = static_cast<uint64_t>(dtype_bytes(window.dtype));
  if (layout.row_bytes % item != 0 || layout.pitch_bytes % item != 0) return kNoWindow;
  const Rows rows{static_cast<int64_t>(layout.row_bytes / item), static_cast<int64_t>(layout.pitch_bytes / item)};
  if (!keeps_to_rows(window, rows.length)) return kNoWindow;
  thread_local std::vector<int64_t> strides;
  strides.assign(window.strides().begin(), window.strides().end());
  for (int64_t& stride : strides) {
    if (stride % rows.length == 0) stride = rows.place(stride);
  }
  return windows.intern(window.dtype, window.sizes(), strides, rows.place(window.offset));
}

void copy_rows(void* storage, const void* block, uint64_t storage_bytes, const Layout& layout) {
  if (!layout.has_gaps()) {
    std::memcpy(storage, block, storage_bytes);
    return;
  }
  auto* to = static_cast<std::byte*>(storage);
  const auto* from = static_cast<const std::byte*>(block);
  for (const std::byte* const end = to + storage_bytes; to != end; to += layout.row_bytes) {
    std::memcpy(to, from, layout.row_bytes);
    from += layout.pitch_bytes;
  }
}

}  // namespace hetero::graph
