// Reads quantized weights as checkpoints of GPTQ and AWQ have them, and packs them for
// gemm.h. No number is rounded: what the checkpoint says is what is computed.
//
//   layout   qweight, int32         qzeros, int32            scales        a number's zero
//   kGptq    [k * bits / 32, n]     [groups, n * bits / 32]  [groups, n]   stored + 1, wraps around
//   kGptqV2  the same               the same                 the same      stored
//   kAwq     [k, n / 8], 4 bits     [groups, n / 8]          [groups, n]   stored
//
// All are row-major; scales are float16. GPTQ puts neighbours along k into an int32, the lowest
// bits first, and those along n in qzeros. AWQ puts neighbours along n into both, in the order 0 2
// 4 6 1 3 5 7.
// Sources: AutoGPTQ (qlinear_cuda_old), GPTQModel for the second version, AutoAWQ (WQLinear_GEMM).
//
// GPTQ may sort the columns by importance before quantizing ("act-order"), and then says for each
// of k the group that it belongs to. Such a weight is packed with its columns sorted by group. The
// caller gathers x accordingly: x'[i] = x[order[i]].
//
// Thread safety: any thread.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/base/status.h"
#include "backend/cpu/quantized/weight.h"

namespace hetero::backend {

enum class CheckpointLayout : uint8_t { kGptq, kGptqV2, kAwq };

// What a checkpoint has; the caller keeps it.
struct CheckpointWeight {
  CheckpointLayout layout = CheckpointLayout::kGptq;
  QuantizedShape shape;  // group 0: whole rows
  const int32_t* qweight = nullptr;
  const int32_t* qzeros = nullptr;
  const uint16_t* scales = nullptr;
  const int32_t* group_of = nullptr;  // "g_idx", [k]; null: neighbours
};

struct ImportedWeight {
  QuantizedShape shape;
  std::vector<uint8_t> packed;
  std::vector<uint16_t> scales;  // float16
  std::vector<uint8_t> zeros;    // empty: symmetric
  std::vector<int32_t> order;    // empty: x is used as it is
};

// The weight, or one sentence that says why it cannot be read.
// REQUIRES: shape.bits is 4 or 8; the arrays have the sizes above.
Result<ImportedWeight> import_weight(const CheckpointWeight& from);

}  // namespace hetero::backend
