// The loops of tile_gemm.h that are compiled for the tile unit (tile_kernel_amx.cpp), behind a
// table.
//
// A tile has 16 rows of 64 bytes. Tiles of x have 16 rows of 32 elements. Tiles of w have 16 pairs
// of elements for each of 16 outputs: row i has elements 2i and 2i + 1 of output 0, of output 1,
// and so on. A float32 element is three planes, in a tile each, the largest first.
//
//   x: [row / 16][k / 32][plane] tiles     w: [n / 32][k / 32][plane][2] tiles (a panel is all of
//                                          one n / 32)
//
// Thread safety: any thread; a thread sets up the unit for itself.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/vector/limits.h"

namespace hetero::backend {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileDepth = 32;  // elements of k
inline constexpr int64_t kPanel = 32;      // outputs
inline constexpr int64_t kTileBytes = 1024;
// Before the panels of a packed weight: its Magnitudes.
inline constexpr int64_t kTileHeader = 64;

inline int64_t plane_count(Element element) { return element == Element::kFloat32 ? 3 : 1; }
// The planes of a float that is multiplied with bfloat16: two are as exact as sums of such
// products.
inline int64_t float_plane_count(Element element) { return element == Element::kFloat32 ? 3 : 2; }
inline int64_t tiles_of(int64_t k) { return (k + kTileDepth - 1) / kTileDepth; }
// The memory of a panel, and of 16 rows.
inline int64_t panel_bytes(Element element, int64_t k) { return tiles_of(k) * plane_count(element) * 2 * kTileBytes; }
inline int64_t row_tile_bytes(Element element, int64_t k) { return tiles_of(k) * plane_count(element) * kTileBytes; }
inline int64_t float_tile_bytes(Element element, int64_t k) {
  return tiles_of(k) * float_plane_count(element) * kTileBytes;
}

// Magnitudes of float32 values as bits. Their order is that of the values, with NaN last.
struct Magnitudes {
  uint32_t largest = 0;
  // The smallest of the largest magnitudes of rows of x, or of outputs of w, that are not all 0.
  uint32_t least = 0xffffffff;

  // Adds the magnitudes of other rows or outputs.
  void join(const Magnitudes& other) {
    largest = largest > other.largest ? largest : other.largest;
    least = least < other.least ? least : other.least;
  }
};

// Whether planes can compute the products of x and w. Three things must hold. No value is infinite,
// or so large that a sum of products becomes infinite. No row of x and no output of w is so small
// as a whole that its lesser planes or their products vanish. And no value is large enough to lift
// what small elements lose, 2^-126 each, above 2^-86. 0 has no planes, and loses nothing.
bool within_reach(const Magnitudes& x, const Magnitudes& w);

// The product of packed rows with a panel. With taps, the sum of products of shifted rows: tap i
// multiplies the rows that are shifts[i] bytes behind x by the panel's next `depth` tiles.
struct TilePart {
  const std::byte* x = nullptr;      // the first tile of the first row
  int64_t x_stride = 0;              // bytes from 16 rows to the next
  int64_t tile_stride = kTileBytes;  // bytes from a tile of k, or of a plane, to the next
  const int64_t* shifts = nullptr;   // null for one tap without shift
  int64_t taps = 1;
  int64_t rows = 0;
  const std::byte* w = nullptr;
  int64_t depth = 0;            // in tiles of k, of each tap
  const float* from = nullptr;  // sums so far, or null
  // Where all 32 sums of whole tiles of rows go, or null: they go to y.
  float* to = nullptr;
  int64_t sum_stride = kPanel;  // of both, in floats
  const float* bias = nullptr;  // 32 floats that are added where sums begin, or null
  void* y = nullptr;
  int64_t y_stride = 0;            // in elements
  const Limits* limits = nullptr;  // of what goes to y, or null
  // Of each `line` rows, the first `line_outputs` go to y, one behind the other. 0: all rows.
  int64_t line = 0;
  int64_t line_outputs = 0;
  int64_t count = 0;  // outputs, at most 32
  // The next operand, to be brought into the second-level cache: this many lines with each tile of
  // k for each 32 rows. May be null.
  const std::byte* next = nullptr;
  int64_t next_lines = 0;
};

struct TileKernels {
  // Packs rows into tiles, and up to 32 outputs into a panel. x is [rows, k], for pack_rows_across
  // [k, rows]. Magnitudes of rows are those of float32 elements. Panels of bfloat16 have the
  // largest one.
  Magnitudes (*pack_rows)(const void* x, int64_t stride, int64_t rows, int64_t k, std::byte* to, int64_t to_stride,
                          int64_t tile_stride);
  // The same, with the largest magnitude of bfloat16, too.
  Magnitudes (*pack_measured_rows)(const void* x, int64_t stride, int64_t rows, int64_t k, std::byte* to,
                                   int64_t to_stride, int64_t tile_stride);
  Magnitudes (*pack_rows_across)(const void* x, int64_t stride, int64_t rows, int64_t k, std::byte* to,
                                 int64_t to_stride);
  // The same from floats, whatever the element, for multiply_floats.
  void (*pack_floats)(const float* x, int64_t stride, int64_t rows, int64_t k, std::byte* to, int64_t to_stride);
  Magnitudes (*pack_panel)(const void* w, int64_t stride, bool columns, int64_t count, int64_t k, std::byte* to);
  void (*multiply)(const TilePart& part);
  void (*multiply_floats)(const TilePart& part);
};

// Sets up the unit for x of `rows` rows (16 for more) during its lifetime and then restores it,
// because oneDNN uses the unit too.
class TileUnit {
 public:
  explicit TileUnit(int64_t rows);
  ~TileUnit();
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;

 private:
  alignas(64) std::byte before_[64];
};

const TileKernels& tile_kernels(Element element);

}  // namespace hetero::backend
