// Setting up the tile unit (AMX), for the kernels that use it: tile_kernel.h, quantized/kernel.h.
//
// g++ 12's functions for tiles hide what they read and write, but for _tile_stored. The compiler
// may thus drop or move writes before them: finish_writes() says that these are read.
//
// Only files that are compiled for AMX include this header; each has functions of its own.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace hetero::backend {
namespace {

inline void finish_writes() { asm volatile("" ::: "memory"); }

struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t row_count, int64_t bytes) {
    rows[tile] = static_cast<uint8_t>(row_count);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfiguration) == 64);

// Sets the unit up, and writes to `before`, 64 bytes, how it was.
inline void set_up_tiles(const TileConfiguration& wanted, void* before) {
  finish_writes();
  _tile_storeconfig(before);
  finish_writes();
  _tile_loadconfig(&wanted);
}

// As it was. A unit that was not set up is released.
inline void restore_tiles(const void* before) {
  finish_writes();
  _tile_loadconfig(before);
}

}  // namespace
}  // namespace hetero::backend
