// The kernels of kernel_amx.cpp on any processor with AVX-512: the tile unit is emulated.
//
// Thread safety: one thread.

#pragma once

#include "backend/cpu/quantized/kernel.h"

namespace hetero::backend {

// REQUIRES: the processor has AVX-512 (F, BW, VL, DQ).
const QuantizedKernels& emulated_tile_kernels();
// Tile instructions that broke a rule of the unit, such as sizes that do not fit each other.
int broken_tile_rules();
// Whether the configuration is what it was at first.
bool tiles_are_released();

}  // namespace hetero::backend
