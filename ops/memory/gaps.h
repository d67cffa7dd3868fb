// Blocks whose rows lie apart (graph/ir/layout.h), moved together for readers that need the bytes
// in one piece.
//
// Thread safety: the executor lock.

#pragma once

#include "backend/base/status.h"
#include "backend/device/device.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

// Moves a settled storage's bytes together. If there is no memory for that, they stay as they are.
// REQUIRES: no flights but those of the caller.
[[nodiscard]] Status close_gaps(HeteroStorage* storage);

// A block in which they are together, for another owner. REQUIRES: valid on the CPU.
Result<backend::Block> without_gaps(const HeteroStorage* storage);

}  // namespace hetero::ops
