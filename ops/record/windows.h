// The table of all windows that tensors of this process are seen through, and the window of a
// tensor.
//
// A tensor of our own class remembers the number of its window, a hint that is checked on use.
//
// Thread safety: the recorder's lock.

#pragma once

#include "graph/ir/window.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

extern graph::WindowTable* window_table_instance;  // made when the library is loaded
inline graph::WindowTable& window_table() { return *window_table_instance; }

// The window of any strided tensor, looked up in the table.
graph::WindowId intern_window(const c10::TensorImpl* impl);

inline graph::WindowId window_of(const HeteroTensorImpl* impl) {
  const graph::WindowId hint = impl->window;
  if (hint < window_table().size() && impl->looks_like(window_table()[hint])) [[likely]]
    return hint;
  return impl->window = intern_window(impl);
}
inline graph::WindowId window_of(const c10::TensorImpl* impl) {
  const HeteroTensorImpl* const hetero = hetero_impl(*impl);
  return hetero != nullptr ? window_of(hetero) : intern_window(impl);
}

}  // namespace hetero::ops
