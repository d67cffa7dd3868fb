// pack_in_parts: runs products whose weight is packed for one call only.
//
// It packs some outputs at a time, into memory that the thread keeps from call to call.
//
// Thread safety: any thread; the memory is the calling thread's.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/base/rounding.h"
#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {

// Calls use(part, memory) for parts of the call's outputs. `memory` has room for `extra` bytes and
// the part's panels of `width` outputs.
template <typename Use>
void pack_in_parts(const Matvec& call, int64_t width, int64_t panel_bytes, Use use, int64_t extra = 0) {
  constexpr int64_t kMostBytes = 16 << 20;
  static thread_local Scratch memory;
  const int64_t outputs = std::max<int64_t>(1, kMostBytes / std::max<int64_t>(panel_bytes, 1)) * width;
  for (int64_t first = 0; first < call.n; first += outputs) {
    Matvec part = call;
    part.n = std::min(outputs, call.n - first);
    part.w = weight_of(call, first);
    part.y = static_cast<std::byte*>(call.y) + first * element_bytes(call.element);
    if (call.bias != nullptr) part.bias = element_at(call.bias, first, call.element);
    use(part, memory.get(extra + divide_up(part.n, width) * panel_bytes));
  }
}

}  // namespace hetero::backend
