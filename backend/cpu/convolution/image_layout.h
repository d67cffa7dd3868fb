// Images from rows of each channel to pixels with their channels together, and concatenations.
//
// Thread safety: any thread. Works on parallel_for's threads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/kernels/matvec.h"

namespace hetero::backend {

// to[image][pixel][channel] = from[image][channel][pixel], rounded to nearest.
void put_channels_last(const float* from, int64_t images, int64_t channels, int64_t pixels, Element element, void* to);

// A part of what is concatenated: `bytes` of each row of the result.
struct RowPiece {
  const std::byte* from;  // null for zeros
  int64_t bytes;
};
// Rows of the result have a piece of each, one behind the other.
void concatenate_rows(std::span<const RowPiece> pieces, int64_t rows, std::byte* to);

}  // namespace hetero::backend
