// Compiled for the tile unit (AMX, tiles and int8) and AVX-512 with VNNI; called only where the
// processor has them, and the system lets the process use the unit. See kernel.h.
//
// The entries of a block are the rows of a tile of x, which has 64 elements of k. Sixteen steps of
// a panel are a tile of w as they lie in memory; steps of 4 bits are unpacked before. A unit of x
// may begin or end within 64 elements, so there are tiles of half the depth too. The sums of a unit
// are stored, scaled, and added to floats by vectors.
//
// Tile registers: 0 to 3 have the sums of four panels, 4 a tile of x and 5 one of w, 6 and 7 the
// same of half the depth.

#include "backend/cpu/kernels/tile_setup.h"
#include "backend/cpu/quantized/kernel.h"
#include "backend/cpu/quantized/lines_avx512.h"

namespace hetero::backend {
namespace {

using S = Avx512Lines;

constexpr int kPanels = 4;
constexpr int64_t kHalf = 32;  // elements of k
constexpr int64_t kStepsOfHalf = kHalf / 4;
constexpr int64_t kLineBytes = 64;

// The unit is set up for a block of so many entries during its lifetime, and then as it was.
class TileSetup {
 public:
  explicit TileSetup(int entries) {
    TileConfiguration wanted;
    for (int tile = 0; tile < kPanels; ++tile) wanted.set(tile, entries, kLineBytes);
    wanted.set(4, entries, kQuantizedTile);
    wanted.set(5, 16, kLineBytes);
    wanted.set(6, entries, kHalf);
    wanted.set(7, 8, kLineBytes);
    set_up_tiles(wanted, before_);
  }
  ~TileSetup() { restore_tiles(before_); }
  TileSetup(const TileSetup&) = delete;
  TileSetup& operator=(const TileSetup&) = delete;

 private:
  alignas(64) uint8_t before_[64];
};

// The steps of a panel, as tiles of w want them: in place, or unpacked.
template <int B>
const uint8_t* steps_at(const uint8_t* panel, int64_t k, int64_t count, uint8_t* unpacked) {
  if constexpr (B == 8) return panel + k / 4 * kLineBytes;
  const uint8_t* from = panel + k / 8 * kLineBytes;
  for (int64_t line = 0; line < count / 8; ++line, from += kLineBytes) {
    _mm512_storeu_si512(unpacked + 2 * line * kLineBytes, S::low(from));
    _mm512_storeu_si512(unpacked + (2 * line + 1) * kLineBytes, S::high(from));
  }
  finish_writes();
  return unpacked;
}

template <int B>
void add_whole(const QuantizedPart& part, const int8_t* x, int64_t k) {
  alignas(64) uint8_t unpacked[kPanels][2 * kStepsOfHalf * kLineBytes];
  const auto w = [&](int64_t r) { return steps_at<B>(part.w + r * part.w_stride, k, kQuantizedTile, unpacked[r]); };
  _tile_loadd(4, x, kQuantizedTile);
  _tile_loadd(5, w(0), kLineBytes);
  _tile_dpbsud(0, 4, 5);
  if (part.panels < 2) return;
  _tile_loadd(5, w(1), kLineBytes);
  _tile_dpbsud(1, 4, 5);
  if (part.panels < 3) return;
  _tile_loadd(5, w(2), kLineBytes);
  _tile_dpbsud(2, 4, 5);
  if (part.panels < 4) return;
  _tile_loadd(5, w(3), kLineBytes);
  _tile_dpbsud(3, 4, 5);
}

template <int B>
void add_half(const QuantizedPart& part, const int8_t* x, int64_t k) {
  alignas(64) uint8_t unpacked[kPanels][kStepsOfHalf * kLineBytes];
  const auto w = [&](int64_t r) { return steps_at<B>(part.w + r * part.w_stride, k, kHalf, unpacked[r]); };
  _tile_loadd(6, x, kQuantizedTile);
  _tile_loadd(7, w(0), kLineBytes);
  _tile_dpbsud(0, 6, 7);
  if (part.panels < 2) return;
  _tile_loadd(7, w(1), kLineBytes);
  _tile_dpbsud(1, 6, 7);
  if (part.panels < 3) return;
  _tile_loadd(7, w(2), kLineBytes);
  _tile_dpbsud(2, 6, 7);
  if (part.panels < 4) return;
  _tile_loadd(7, w(3), kLineBytes);
  _tile_dpbsud(3, 6, 7);
}

// Adds the sums of a unit, which are [panel][entry][16], to the floats.
template <int P>
void scale_and_add(const QuantizedPart& part, int64_t unit, const int32_t* sums) {
  const int64_t rows = part.entries / P;
  const auto middle = static_cast<uint32_t>(part.middle);
  for (int64_t r = 0; r < part.panels; ++r) {
    const int64_t index = (r * part.groups + unit / part.units_of_group) * 16;
    const S::Floats scale =
        quantized_detail::load_scales<S>(part.scale_element, part.scales, index, kPanels * part.groups * 16);
    const S::Floats bias = part.bias != nullptr ? S::load(part.bias + r * 16) : S::none();
    const S::Sums zeros = part.zeros != nullptr ? S::load_bytes(part.zeros + index) : S::zero();
    for (int64_t m = 0; m < rows; ++m) {
      const int32_t* const entry = sums + (r * kQuantizedEntries + m * P) * 16;
      S::Sums sum = _mm512_loadu_si512(entry);
      if constexpr (P == 2) sum = S::join(sum, _mm512_loadu_si512(entry + 16));
      const int32_t x_sum = part.x_sums[unit * rows + m];
      sum = part.zeros != nullptr ? S::less(sum, zeros, x_sum) : S::less(sum, middle * static_cast<uint32_t>(x_sum));
      const S::Floats factor = S::mul(scale, S::of(part.x_scales[unit * rows + m]));
      float* const out = part.out + m * part.out_stride + r * 16;
      S::store(S::fma(S::from(sum), factor, unit == 0 ? bias : S::load(out)), out);
    }
  }
}

template <int B, int P>
void multiply(const QuantizedPart& part) {
  constexpr int64_t kElementsOfLine = B == 8 ? 4 : 8;
  const TileSetup setup(part.entries);
  const int64_t depth = part.lines * kElementsOfLine;
  const int64_t unit_depth = part.unit_lines * kElementsOfLine;
  alignas(64) int32_t sums[kPanels * kQuantizedEntries * 16];
  if (part.units == 0) {
    for (int64_t r = 0; r < part.panels; ++r) {
      const S::Floats bias = part.bias != nullptr ? S::load(part.bias + r * 16) : S::none();
      for (int64_t m = 0; m < part.entries / P; ++m) S::store(bias, part.out + m * part.out_stride + r * 16);
    }
  }
  for (int64_t unit = 0; unit < part.units; ++unit) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const int64_t end = (unit + 1) * unit_depth < depth ? (unit + 1) * unit_depth : depth;
    for (int64_t k = unit * unit_depth; k < end;) {
      const int8_t* const x = part.x + k / kQuantizedTile * part.entries * kQuantizedTile + k % kQuantizedTile;
      if (k % kQuantizedTile == 0 && end - k >= kQuantizedTile) {
        add_whole<B>(part, x, k);
        k += kQuantizedTile;
      } else {
        add_half<B>(part, x, k);
        k += kHalf;
      }
    }
    constexpr int64_t kTile = kQuantizedEntries * 16;
    _tile_stored(0, sums, kLineBytes);
    _tile_stored(1, sums + kTile, kLineBytes);
    _tile_stored(2, sums + 2 * kTile, kLineBytes);
    _tile_stored(3, sums + 3 * kTile, kLineBytes);
    scale_and_add<P>(part, unit, sums);
  }
}

int panels_of_tiles(int) { return kPanels; }

template <int B, int P>
constexpr void fill(QuantizedKernels& kernels) {
  for (int entries = P; entries <= kQuantizedEntries; entries += P) {
    kernels.multiply[B == 8][P - 1][entries - 1] = &multiply<B, P>;
  }
}

constexpr QuantizedKernels make_kernels() {
  QuantizedKernels kernels{};
  kernels.most_entries = kQuantizedEntries;
  kernels.panels = &panels_of_tiles;
  fill<8, 1>(kernels);
  fill<8, 2>(kernels);
  fill<4, 1>(kernels);
  fill<4, 2>(kernels);
  kernels.quantize[0] = &quantized_detail::quantize_row<S, 1>;
  kernels.quantize[1] = &quantized_detail::quantize_row<S, 2>;
  return kernels;
}

}  // namespace

const QuantizedKernels& quantized_kernels_amx() {
  static constexpr QuantizedKernels kKernels = make_kernels();
  return kKernels;
}

}  // namespace hetero::backend
