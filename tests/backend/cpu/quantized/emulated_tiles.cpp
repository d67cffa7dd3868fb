// Compiled for AVX-512. The tile instructions become functions that do what Intel's manual says of
// them, and check that sizes fit; then the source of the kernels is compiled with these.

#include "tests/backend/cpu/quantized/emulated_tiles.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct Configuration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Configuration) == 64);

Configuration configuration{};
uint8_t tiles[8][16][64];
int broken = 0;

void check(bool holds) { broken += holds ? 0 : 1; }

void load_configuration(const void* from) {
  std::memcpy(&configuration, from, sizeof(configuration));
  std::memset(tiles, 0, sizeof(tiles));
  check(configuration.palette <= 1);
  for (int i = 0; i < 8; ++i) check(configuration.row_bytes[i] <= 64 && configuration.rows[i] <= 16);
}
void store_configuration(void* to) { std::memcpy(to, &configuration, sizeof(configuration)); }

void load(int tile, const void* from, int64_t stride) {
  check(configuration.palette == 1);
  std::memset(tiles[tile], 0, sizeof(tiles[tile]));
  for (int row = 0; row < configuration.rows[tile]; ++row) {
    std::memcpy(tiles[tile][row], static_cast<const uint8_t*>(from) + row * stride, configuration.row_bytes[tile]);
  }
}
void store(int tile, void* to, int64_t stride) {
  check(configuration.palette == 1);
  for (int row = 0; row < configuration.rows[tile]; ++row) {
    std::memcpy(static_cast<uint8_t*>(to) + row * stride, tiles[tile][row], configuration.row_bytes[tile]);
  }
}
void zero(int tile) { std::memset(tiles[tile], 0, sizeof(tiles[tile])); }

// Signed bytes of a by unsigned bytes of b, in fours.
void multiply(int sums, int a, int b) {
  check(configuration.rows[sums] == configuration.rows[a]);
  check(configuration.row_bytes[a] == 4 * configuration.rows[b]);
  check(configuration.row_bytes[sums] == configuration.row_bytes[b]);
  for (int row = 0; row < configuration.rows[a]; ++row) {
    for (int column = 0; column < configuration.row_bytes[b] / 4; ++column) {
      int32_t sum;
      std::memcpy(&sum, &tiles[sums][row][4 * column], 4);
      for (int k = 0; k < configuration.row_bytes[a]; ++k) {
        sum += static_cast<int8_t>(tiles[a][row][k]) * tiles[b][k / 4][4 * column + k % 4];
      }
      std::memcpy(&tiles[sums][row][4 * column], &sum, 4);
    }
  }
}

}  // namespace

#undef _tile_loadconfig
#undef _tile_storeconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#define _tile_loadconfig load_configuration
#define _tile_storeconfig store_configuration
#define _tile_loadd load
#define _tile_stored store
#define _tile_zero zero
#define _tile_dpbsud ::multiply
#define quantized_kernels_amx emulated_tile_kernels
#include "backend/cpu/quantized/kernel_amx.cpp"

namespace hetero::backend {

int broken_tile_rules() { return broken; }
bool tiles_are_released() { return configuration.palette == 0; }

}  // namespace hetero::backend
