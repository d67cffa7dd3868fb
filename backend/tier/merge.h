// Merging pieces of a file into operations of the system.
//
// A block is often many pieces, and neighbouring blocks are neighbours in the file. Pieces that
// touch in the file become one operation, whatever their places in memory; where they touch in
// memory too, they share one part of it. Each byte is moved once, by exactly one operation.
//
// Thread safety: pure functions.

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hetero::backend {

struct FilePiece {
  int64_t offset = 0;  // in the file
  std::byte* memory = nullptr;
  int64_t bytes = 0;
};

struct MergeLimits {
  // The system's own limits: IOV_MAX, and the largest transfer that Linux makes in one call.
  static constexpr int64_t kMostParts = 1024;
  static constexpr int64_t kMostBytes = 0x7ffff000;

  int64_t parts = kMostParts;
  int64_t bytes = int64_t{4} << 20;
};

struct MergedOperation {
  int64_t offset = 0;
  int64_t bytes = 0;
  std::vector<iovec> memory;
  // The pieces that have bytes in it: [first_piece, first_piece + pieces) of the sorted ones.
  size_t first_piece = 0;
  size_t pieces = 0;
};

// Sorts the pieces by offset, and returns operations in this order. A piece larger than
// limits.bytes is split; others stay whole. Empty pieces belong to no operation. Pieces may overlap
// in the file, as two reads of the same bytes do; they do not share an operation then.
// REQUIRES: 1 <= limits.parts <= kMostParts; 1 <= limits.bytes <= kMostBytes.
std::vector<MergedOperation> merge_pieces(std::vector<FilePiece>& pieces, const MergeLimits& limits = {});

}  // namespace hetero::backend
