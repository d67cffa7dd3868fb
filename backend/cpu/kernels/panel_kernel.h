// The inner loops of panel_gemm.h: templates over a vector of floats, compiled once per instruction
// set.
//
// As in matvec_kernel.h, everything here is a template over a type of the including file's unnamed
// namespace, so the linker takes no function in place of one for every processor.
//
// A panel is a packed part of w: for each step along k, the elements of `width` outputs, which are
// two vectors of sums. A row's step of x is one number that all lanes share. So a step reads two
// vectors and `rows` numbers for 2 * rows multiplications, and the sums stay in registers.
//
// Rows of x may lie in pieces, each of which is anywhere (RowPieces). Where a panel has no more
// outputs than one vector, the other one is left out.
//
// A format F of steps has X (a number of x as the kernel reads it), Stored (the element of w and
// y), V (its vector of floats), load<i>(w, low, high), which reads what the i-th number of a step
// is multiplied by, share(x), multiply_add(x, w, sum), and narrow(low, high, y), which rounds a row
// of sums. A step is F::kTerms elements of k, and F::kNumbers numbers of x.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/cpu/vector/limits.h"
#include "backend/cpu/vector/transpose.h"

namespace hetero::backend {

// Products of some rows with a panel, and of as many rows behind them, `parts` times.
struct PanelPart {
  const void* x = nullptr;
  int64_t x_stride = 0;  // bytes
  int64_t rows = 0;      // at most those of the kernel
  int64_t parts = 1;
  const void* w = nullptr;
  int64_t steps = 0;
  const float* from = nullptr;  // sums so far, [parts * rows, width], or null
  float* to = nullptr;          // where sums go, or null: they go to y
  const float* bias = nullptr;  // `width` floats that sums begin with where `from` is null, or null
  void* y = nullptr;
  int64_t y_stride = 0;            // elements
  int64_t count = 0;               // outputs, at most the width
  const Limits* limits = nullptr;  // of what goes to y, or null
  // In place of x, for multiply_pieces: the addresses of the first piece in all rows, of all parts,
  // and piece_stride behind them those of the next. `steps` is a multiple of piece_steps.
  const void* const* pieces = nullptr;
  int64_t piece_stride = 0;
  int64_t piece_steps = 0;
  int64_t piece_offset = 0;  // bytes, added to each
};

// The functions of an instruction set for one element type.
struct PanelKernels {
  int64_t rows;   // of one part, at most
  int64_t width;  // of a panel
  int64_t terms;  // elements of k in a step
  bool floats;    // x has to be made floats
  void (*multiply)(const PanelPart& part);
  int64_t piece_rows;  // of one part whose rows are in pieces, at most
  void (*multiply_pieces)(const PanelPart& part);
  // Packs the steps of `width` outputs, each of which lies in one piece, `stride` steps from output
  // to output. For steps of 4 bytes; null for others.
  void (*pack)(const float* from, int64_t stride, int64_t steps, float* to);
};

// Indexed by Element. The last entry has bfloat16 only, by its own instructions.
const PanelKernels& panel_kernels_avx2(int element);
const PanelKernels& panel_kernels_avx512(int element);
const PanelKernels& panel_kernels_bfloat16();

// Part i, of R rows, and the first kVectors vectors of a panel.
template <typename F, int R, int kVectors, bool in_pieces>
[[gnu::always_inline]] inline void multiply_part(const PanelPart& part, int64_t i) {
  using V = typename F::V;
  using X = typename F::X;
  using Stored = typename F::Stored;
  constexpr int kWidth = 2 * V::kWidth;
  // A pointer to every third row of x: the two rows behind it are the stride away and twice the
  // stride, which an address may have in it.
  constexpr int kPointers = in_pieces ? R : (R + 2) / 3;
  V sums[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const float* const start = part.from != nullptr ? part.from + (i * R + r) * kWidth : part.bias;
    sums[r][0] = start != nullptr ? V::load(start) : V::zero();
    sums[r][1] = start != nullptr && kVectors > 1 ? V::load(start + V::kWidth) : V::zero();
  }
  const char* x[kPointers];
  const auto* w = static_cast<const Stored*>(part.w);
  // `offset`: bytes behind the pointers.
  const auto multiply = [&]<int number>(int64_t offset) __attribute__((always_inline)) {
    V low, high;
    F::template load<number>(w, low, high);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const char* const at = in_pieces ? x[r] + offset : x[r / 3] + (r % 3) * part.x_stride;
      // Otherwise the compiler loads it twice.
      const V shared = V::keep(F::share(at + number * sizeof(X)));
      sums[r][0] = F::multiply_add(shared, low, sums[r][0]);
      if constexpr (kVectors > 1) sums[r][1] = F::multiply_add(shared, high, sums[r][1]);
    }
  };
  if constexpr (in_pieces) {
    const void* const* pieces = part.pieces + i * R;
    const auto bytes = part.piece_steps * static_cast<int64_t>(F::kNumbers * sizeof(X));
    for (int64_t left = part.steps; left > 0; left -= part.piece_steps, pieces += part.piece_stride) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) x[r] = static_cast<const char*>(pieces[r]) + part.piece_offset + bytes;
      for (int64_t offset = -bytes; offset < 0; offset += F::kNumbers * sizeof(X)) {
        multiply.template operator()<0>(offset);
        if constexpr (F::kNumbers == 2) multiply.template operator()<1>(offset);
        w += kWidth * F::kTerms;
      }
    }
  } else {
#pragma GCC unroll 16
    for (int p = 0; p < kPointers; ++p) x[p] = static_cast<const char*>(part.x) + (i * R + 3 * p) * part.x_stride;
    for (int64_t step = 0; step < part.steps; ++step) {
      multiply.template operator()<0>(0);
      if constexpr (F::kNumbers == 2) multiply.template operator()<1>(0);
      w += kWidth * F::kTerms;
#pragma GCC unroll 16
      for (int p = 0; p < kPointers; ++p) x[p] += F::kNumbers * sizeof(X);
    }
  }
  if (part.limits != nullptr) {
    const Limits limits = *part.limits;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sums[r][0] = limits(sums[r][0]);
      if constexpr (kVectors > 1) sums[r][1] = limits(sums[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if (part.to != nullptr) {
      sums[r][0].store(part.to + (i * R + r) * kWidth);
      sums[r][1].store(part.to + (i * R + r) * kWidth + V::kWidth);
      continue;
    }
    Stored* const y = static_cast<Stored*>(part.y) + (i * R + r) * part.y_stride;
    if (part.count == kWidth) {
      F::narrow(sums[r][0], sums[r][1], y);
    } else {
      Stored whole[kWidth];
      F::narrow(sums[r][0], sums[r][1], whole);
      int64_t output = 0;
      for (; output + 4 <= part.count; output += 4) __builtin_memcpy(y + output, whole + output, 4 * sizeof(Stored));
      for (; output < part.count; ++output) y[output] = whole[output];
    }
  }
}

template <typename F, int R, int kVectors, bool in_pieces>
[[gnu::noinline]] void multiply_panel(const PanelPart& part) {
  for (int64_t i = 0; i < part.parts; ++i) multiply_part<F, R, kVectors, in_pieces>(part, i);
}

template <typename F, int R, bool in_pieces>
void multiply_rows(const PanelPart& part) {
  if constexpr (R > 1) {
    if (part.rows < R) return multiply_rows<F, R - 1, in_pieces>(part);
  }
  if (part.count <= F::V::kWidth) return multiply_panel<F, R, 1, in_pieces>(part);
  multiply_panel<F, R, 2, in_pieces>(part);
}

template <typename V>
void pack_outputs(const float* from, int64_t stride, int64_t steps, float* to) {
  for (int64_t i = 0; i < 2 * V::kWidth; i += V::kWidth) {
    transpose_rows<V>(from + i * stride, stride, V::kWidth, steps, to + i, 2 * V::kWidth);
  }
}

// The sums of R rows, two vectors, and a number of x are in registers.
template <typename F>
constexpr PanelKernels make_panel_kernels() {
  constexpr int R = F::V::kRegisters / 2 - 2;
  constexpr int kPieceRows = R < 8 ? R : 8;  // as many as there are registers for their addresses
  constexpr bool kFloats = sizeof(typename F::X) * F::kNumbers / F::kTerms != sizeof(typename F::Stored);
  constexpr bool kPacks = sizeof(typename F::Stored) * F::kTerms == sizeof(float);
  constexpr auto pack = kPacks ? &pack_outputs<typename F::V> : nullptr;
  return {R,
          2 * F::V::kWidth,
          F::kTerms,
          kFloats,
          &multiply_rows<F, R, false>,
          kPieceRows,
          &multiply_rows<F, kPieceRows, true>,
          pack};
}

// The format in which a step is a float of x, and an element of w that a loader L of
// matvec_kernel.h makes a float.
template <typename Vector, typename L>
struct FloatSteps {
  using V = Vector;
  using X = float;
  using Stored = typename L::Stored;
  static constexpr int kTerms = 1;
  static constexpr int kNumbers = 1;
  template <int>
  static void load(const Stored* w, V& low, V& high) {
    L::load(w, low, high);
  }
  static V share(const char* x) { return V::broadcast(reinterpret_cast<const float*>(x)); }
  static V multiply_add(V x, V w, V sum) { return V::fma(x, w, sum); }
  static void narrow(V low, V high, Stored* y) { L::narrow(low, high, y); }
};

// Of the loaders in the order of Element.
template <typename Vector, typename... Loaders>
const PanelKernels& float_panel_kernels(int element) {
  static constexpr PanelKernels kKernels[] = {make_panel_kernels<FloatSteps<Vector, Loaders>>()...};
  return kKernels[element];
}

}  // namespace hetero::backend
