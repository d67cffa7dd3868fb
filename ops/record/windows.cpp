#include "ops/record/windows.h"

namespace hetero::ops {

constinit graph::WindowTable* window_table_instance = nullptr;

namespace {
// Before the recorder, which refers to it.
[[gnu::constructor(199)]] void make_window_table() { window_table_instance = new graph::WindowTable; }
}  // namespace

graph::WindowId intern_window(const c10::TensorImpl* impl) {
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  return window_table().intern(static_cast<graph::DType>(c10::typeMetaToScalarType(impl->dtype())),
                               {sizes.data(), sizes.size()}, {strides.data(), strides.size()}, impl->storage_offset());
}

}  // namespace hetero::ops
