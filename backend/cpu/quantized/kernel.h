// The inner loops of gemm.h: templates over a set of integer instructions, compiled once
// for each.
//
// As in matvec_kernel.h, everything here is a template over a type of the including file's unnamed
// namespace, and nothing of the standard library that has code is used.
//
// An instruction set S has these types and functions, all for the sixteen outputs of a panel:
//   Line     a line of 64 bytes of a panel: whole(p), and low(p) and high(p), the halves of bytes
//   Four     four signed bytes of x, in every lane: share(p)
//   Sums     sixteen int32: zero(), add, dot(sums, line, four), which adds four products to each,
//            join(high, low) = high * 256 + low, less(sums, zeros, x) = sums - zeros * x
//            and less(sums, x). All but dot wrap around: only differences have to fit.
//   Floats   sixteen floats: load(p), store(floats, p), of(number), none(), mul, fma, from(sums)
//   kSums    the Sums that stay in registers
// and for x: largest(p, count), the largest magnitude as bits, and place<P>(p, factor, to), which
// rounds sixteen floats times a factor, writes them as P planes, 64 bytes apart, and returns them
// as Sums.
//
// x as kernels read it: for each 64 elements of k, the 64 bytes of each entry. An entry is a plane
// of a row; the two planes of a row are neighbours, the upper byte first. That is a tile of the
// tile unit too. The elements of a unit of x share a scale. A unit lies within a group of the
// weight, and is short enough for int32.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/vector/times.h"

namespace hetero::backend {

// Of a block of rows, at most.
inline constexpr int kQuantizedEntries = 16;
inline constexpr int kVectorEntries = 12;      // by vector instructions
inline constexpr int64_t kQuantizedTile = 64;  // elements of k of a tile of x
// The most elements of a unit: 255 * 127 * 65536 and 255 * 32639 * 256 are int32.
inline constexpr int64_t kUnitOfEight = 65536;
inline constexpr int64_t kUnitOfSixteen = 256;
inline constexpr float kLargestOfEight = 127;
inline constexpr float kLargestOfSixteen = 32639;  // 127 * 256 + 127

// A block of rows by some panels.
struct QuantizedPart {
  const int8_t* x = nullptr;
  const float* x_scales = nullptr;  // [units][rows]
  const int32_t* x_sums = nullptr;  // [units][rows]: of the whole numbers of x
  const uint8_t* w = nullptr;       // of the first panel
  int64_t w_stride = 0;             // bytes of a panel
  int scale_element = 0;            // as Element
  const void* scales = nullptr;
  const uint8_t* zeros = nullptr;  // null: all are `middle`
  int middle = 0;
  int64_t groups = 0;
  int64_t units = 0;
  int64_t units_of_group = 0;
  int64_t unit_lines = 0;  // lines of w for a unit; the last may have fewer
  int64_t lines = 0;       // lines of w for all of k
  int64_t panels = 0;      // at most kernels.panels
  int entries = 0;
  const float* bias = nullptr;  // [16 * panels] that sums begin with, or null
  float* out = nullptr;         // [rows][16 * panels], a row each out_stride
  int64_t out_stride = 0;
};

// A row of x to be quantized into its place in a block.
struct QuantizedRow {
  const float* x = nullptr;
  int64_t k = 0;
  int64_t padded_k = 0;
  int64_t unit = 0;  // elements
  int8_t* to = nullptr;
  int64_t tile_bytes = 0;  // from 64 elements to the next
  float* scales = nullptr;
  int32_t* sums = nullptr;
  int64_t stride = 0;  // of both, from a unit to the next
};

struct QuantizedKernels {
  int most_entries;
  // Panels that a block of so many entries takes at once.
  int (*panels)(int entries);
  // [bits == 8][planes - 1][entries - 1]; null where there is none.
  void (*multiply[2][2][kQuantizedEntries])(const QuantizedPart& part);
  void (*quantize[2])(const QuantizedRow& row);  // [planes - 1]
};

const QuantizedKernels& quantized_kernels_avx2();
const QuantizedKernels& quantized_kernels_avx512();
const QuantizedKernels& quantized_kernels_vnni();
const QuantizedKernels& quantized_kernels_amx();

namespace quantized_detail {

// Sixteen scales; those `ahead` behind them are brought into the cache.
template <typename S>
inline typename S::Floats load_scales(int element, const void* scales, int64_t index, int64_t ahead) {
  if (element == 0) {
    const auto* const floats = static_cast<const float*>(scales) + index;
    __builtin_prefetch(floats + ahead, 0, 2);
    return S::load(floats);
  }
  const auto* const halves = static_cast<const uint16_t*>(scales) + index;
  __builtin_prefetch(halves + ahead, 0, 2);
  return element == 1 ? S::load_bfloat16(halves) : S::load_float16(halves);
}

template <typename S, int kEntries>
constexpr int panels_at_once() {
  constexpr int kFit = S::kSums / kEntries;
  return kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
}

template <typename S>
int panels_of(int entries) {
  const int fit = S::kSums / entries;
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// R panels of E entries, which are P planes of E / P rows.
template <typename S, int B, int P, int E>
[[gnu::noinline]] void multiply(const QuantizedPart& part) {
  constexpr int R = panels_at_once<S, E>();
  constexpr int M = E / P;
  constexpr int kSteps = B == 8 ? 1 : 2;  // of a line
  constexpr int64_t kTileLines = 16 / kSteps;
  using Sums = typename S::Sums;
  using Floats = typename S::Floats;
  // A panel beyond the last is computed like the last, and thrown away.
  const uint8_t* w[R];
  times<R>([&](auto r) __attribute__((always_inline)) {
    w[r] = part.w + (r < part.panels ? r : part.panels - 1) * part.w_stride;
  });
  // The same place of the next panels: prefetchers of the processor stop at the end of a page.
  const int64_t ahead = R * part.w_stride;
  const auto middle = static_cast<uint32_t>(part.middle);
  Floats floats[R][M];
  times<R>([&](auto r) __attribute__((always_inline)) {
    const bool begins = part.bias != nullptr && r < part.panels;
    const Floats bias = begins ? S::load(part.bias + r * 16) : S::none();
    times<M>([&](auto m) __attribute__((always_inline)) { floats[r][m] = bias; });
  });
  int64_t line = 0;
  int64_t group = -1;
  int64_t left_of_group = 0;  // units
  for (int64_t unit = 0; unit < part.units; ++unit) {
    Sums sums[R][E];
    times<R * E>([&](auto i) __attribute__((always_inline)) { sums[i / E][i % E] = S::zero(); });
    const int64_t end = line + part.unit_lines < part.lines ? line + part.unit_lines : part.lines;
    while (line < end) {
      // To the end of the unit or of 64 elements.
      const int8_t* x = part.x + line / kTileLines * (64 * E) + line % kTileLines * (4 * kSteps);
      const int64_t tile_end = (line / kTileLines + 1) * kTileLines;
      for (const int64_t stop = end < tile_end ? end : tile_end; line < stop; ++line) {
        times<R>([&](auto r) __attribute__((always_inline)) { __builtin_prefetch(w[r] + ahead, 0, 2); });
        times<kSteps>([&](auto step) __attribute__((always_inline)) {
          typename S::Line here[R];
          times<R>([&](auto r) __attribute__((always_inline)) {
            here[r] = B == 8 ? S::whole(w[r]) : step == 0 ? S::low(w[r]) : S::high(w[r]);
          });
          times<E>([&](auto e) __attribute__((always_inline)) {
            const typename S::Four four = S::share(x + 64 * e + 4 * step);
            times<R>([&](auto r) __attribute__((always_inline)) { sums[r][e] = S::dot(sums[r][e], here[r], four); });
          });
        });
        times<R>([&](auto r) __attribute__((always_inline)) { w[r] += 64; });
        x += 4 * kSteps;
      }
    }
    if (left_of_group == 0) {
      left_of_group = part.units_of_group;
      ++group;
    }
    --left_of_group;
    times<R>([&](auto r) __attribute__((always_inline)) {
      const int64_t panel = r < part.panels ? r : part.panels - 1;
      const int64_t index = (panel * part.groups + group) * 16;
      const Floats scale = load_scales<S>(part.scale_element, part.scales, index, R * part.groups * 16);
      const Sums zeros = part.zeros != nullptr ? S::load_bytes(part.zeros + index) : S::zero();
      times<M>([&](auto m) __attribute__((always_inline)) {
        Sums sum = sums[r][m * P];
        if constexpr (P == 2) sum = S::join(sum, sums[r][m * P + 1]);
        const int32_t x_sum = part.x_sums[unit * M + m];
        sum = part.zeros != nullptr ? S::less(sum, zeros, x_sum) : S::less(sum, middle * static_cast<uint32_t>(x_sum));
        const Floats factor = S::mul(scale, S::of(part.x_scales[unit * M + m]));
        floats[r][m] = S::fma(S::from(sum), factor, floats[r][m]);
      });
    });
  }
  times<R>([&](auto r) __attribute__((always_inline)) {
    if (r >= part.panels) return;
    times<M>([&](auto m)
                 __attribute__((always_inline)) { S::store(floats[r][m], part.out + m * part.out_stride + r * 16); });
  });
}

template <typename S, int P>
void quantize_row(const QuantizedRow& row) {
  constexpr uint32_t kInfinity = 0x7f800000;
  // 2^-112: the factor would be infinite for smaller ones, which count as 0.
  constexpr uint32_t kTiny = 15u << 23;
  constexpr float kLargest = P == 1 ? kLargestOfEight : kLargestOfSixteen;
  int64_t unit = 0;
  for (int64_t first = 0; first < row.padded_k; first += row.unit, ++unit) {
    const int64_t end = first + row.unit < row.padded_k ? first + row.unit : row.padded_k;
    const uint32_t bits = S::largest(row.x + first, end - first);
    float largest;
    __builtin_memcpy(&largest, &bits, sizeof(largest));
    const bool finite = bits < kInfinity;
    const bool tiny = bits < kTiny;
    const float factor = finite && !tiny ? kLargest / largest : 0;
    typename S::Sums sums = S::zero();
    for (int64_t i = first; i < end; i += 16) {
      int8_t* const to = row.to + i / kQuantizedTile * row.tile_bytes + i % kQuantizedTile;
      sums = S::add(sums, S::template place<P>(row.x + i, factor, to));
    }
    row.sums[unit * row.stride] = S::total(sums);
    row.scales[unit * row.stride] = finite ? (tiny ? 0 : largest / kLargest) : __builtin_nanf("");
  }
}

template <typename S, int B, int P, int E>
constexpr void fill(QuantizedKernels& kernels) {
  if constexpr (E % P == 0) kernels.multiply[B == 8][P - 1][E - 1] = &multiply<S, B, P, E>;
  if constexpr (E > 1) fill<S, B, P, E - 1>(kernels);
}

}  // namespace quantized_detail

template <typename S>
constexpr QuantizedKernels make_quantized_kernels() {
  QuantizedKernels kernels{};
  constexpr int kMost = S::kSums < kVectorEntries ? S::kSums : kVectorEntries;
  kernels.most_entries = kMost;
  kernels.panels = &quantized_detail::panels_of<S>;
  quantized_detail::fill<S, 8, 1, kMost>(kernels);
  quantized_detail::fill<S, 8, 2, kMost>(kernels);
  quantized_detail::fill<S, 4, 1, kMost>(kernels);
  quantized_detail::fill<S, 4, 2, kMost>(kernels);
  kernels.quantize[0] = &quantized_detail::quantize_row<S, 1>;
  kernels.quantize[1] = &quantized_detail::quantize_row<S, 2>;
  return kernels;
}

}  // namespace hetero::backend
