// BlockGeometry: the bytes of a block, wherever a tier keeps it.
//
// A block is the keys and values of some tokens. It has one piece for each layer: the layer's keys,
// then its values. Pieces lie one behind the other, each on a page border, so that any of them can
// be read from a file without the page cache. Host memory, files and remote values all keep blocks
// like this; only a device has a layout of its own.
//
// Thread safety: a value.

#pragma once

#include <cstdint>

namespace hetero::backend {

struct BlockGeometry {
  static constexpr int64_t kPageBytes = 4096;

  int64_t tokens = 0;       // of a block
  int64_t pieces = 0;       // layers
  int64_t piece_bytes = 0;  // keys and values of a layer

  int64_t piece_stride() const { return (piece_bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }
  int64_t block_bytes() const { return pieces * piece_stride(); }
  bool operator==(const BlockGeometry&) const = default;
};

}  // namespace hetero::backend
