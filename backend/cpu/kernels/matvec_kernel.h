// The inner loops of matvec.h: templates over a vector of floats, compiled once per instruction
// set.
//
// matvec_avx512.cpp and matvec_avx2.cpp are compiled with their own flags. The linker must not take
// a function of theirs in place of one for every processor. So this header includes nothing of the
// standard library that has code, and everything in it is a template over a type of the including
// file's unnamed namespace.
//
// A vector type V has kWidth, kRegisters, zero(), load(p), store(p), broadcast(p), fma(a, b, c) = a
// * b + c, keep(v), which makes the compiler forget that v is in memory, and sums(a, b, c, d, out),
// the sum of each. A vector's elements are added in the same order wherever it is.
//
// A loader L reads a block of 2 * V::kWidth elements as two vectors of floats, in a fixed order of
// its own. It has Stored (the element's bytes), load(p, low, high), and load_part(p, count, low,
// high), with zeros after `count`. A loader that keeps the order also has narrow(low, high, p).
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {

// Part of a product: `count` outputs, starting with the one that w points to.
struct MatvecPart {
  const float* x;    // [m, x_stride]: as `prepare` left it
  int64_t x_stride;  // k rounded up to whole blocks
  int64_t k;
  const void* w;
  int64_t w_stride;
  int64_t count;
  float* out;  // [m, out_stride], written; rows are padded to whole blocks
  int64_t out_stride;
  bool from_memory = true;  // w is not in the second-level cache
};

// The functions of an instruction set for one element type.
struct MatvecKernels {
  // Rounds the floats of whole blocks; in the order of memory.
  void (*narrow)(const float* floats, int64_t count, void* out);
  // Converts one row of k elements to floats, in whole blocks of which the last is filled with
  // zeros.
  void (*prepare)(const void* row, int64_t k, float* out);
  void (*parts[8])(const MatvecPart& part);  // by m - 1
};

inline constexpr int64_t kMatvecMaxBlock = 32;

// [element][columns]
using MatvecTable = MatvecKernels[3][2];
const MatvecTable& matvec_avx512();
const MatvecTable& matvec_avx2();
// REQUIRES: set <= instruction_set().
const MatvecTable& matvec_table(InstructionSet set);

template <typename V, typename L>
void prepare_row(const void* row, int64_t k, float* out) {
  constexpr int kBlock = 2 * V::kWidth;
  const auto* from = static_cast<const typename L::Stored*>(row);
  V low, high;
  for (int64_t i = 0; i < k; i += kBlock) {
    if (k - i >= kBlock) {
      L::load(from + i, low, high);
    } else {
      L::load_part(from + i, static_cast<int>(k - i), low, high);
    }
    low.store(out + i);
    high.store(out + i + V::kWidth);
  }
}

template <typename V, typename L>
void narrow_blocks(const float* floats, int64_t count, void* out) {
  for (int64_t i = 0; i < count; i += 2 * V::kWidth) {
    L::narrow(V::load(floats + i), V::load(floats + i + V::kWidth), static_cast<typename L::Stored*>(out) + i);
  }
}

// How many rows of w are read at once. R * M sums, 2 * R vectors of w and one of x fit in the
// registers.
template <typename V, int M>
constexpr int dot_row_count() {
  if (V::kRegisters >= 32) return M == 1 ? 8 : M <= 5 ? 4 : 3;
  return M == 1 ? 4 : M <= 4 ? 2 : 1;
}

// Outputs of R rows of w at once, from R streams of memory.
template <typename V, typename L, int M, int R, bool prefetches>
inline void dot_rows(const MatvecPart& part, int64_t first) {
  constexpr int kBlock = 2 * V::kWidth;
  constexpr int64_t kLeastPrefetchBytes = 16384;
  constexpr int64_t kLine = 64;
  using Stored = typename L::Stored;
  const auto* w = static_cast<const Stored*>(part.w) + first * part.w_stride;
  V sums[R][M];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) sums[r][m] = V::zero();
  }
  const auto step = [&](int64_t i, auto&& load) __attribute__((always_inline)) {
    V low[R], high[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) load(w + r * part.w_stride + i, low[r], high[r]);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      // Otherwise the compiler loads it again for each row of w.
      const V x_low = V::keep(V::load(part.x + m * part.x_stride + i));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][m] = V::fma(low[r], x_low, sums[r][m]);
      const V x_high = V::keep(V::load(part.x + m * part.x_stride + i + V::kWidth));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][m] = V::fma(high[r], x_high, sums[r][m]);
    }
  };
  // The rows after the next: prefetchers of the processor stop at the end of a page. Where w is in
  // the second-level cache already, prefetching there would take as long as loading.
  int64_t ahead = 2 * R * part.w_stride;
  if (ahead < kLeastPrefetchBytes / static_cast<int64_t>(sizeof(Stored))) {
    ahead = kLeastPrefetchBytes / static_cast<int64_t>(sizeof(Stored));
  }
  int64_t i = 0;
  for (; i + kBlock <= part.k; i += kBlock) {
    step(
        i, [&](const auto* p, V& low, V& high) __attribute__((always_inline)) {
          if (prefetches) __builtin_prefetch(p + ahead, 0, 2);
          if (prefetches && kBlock * sizeof(Stored) > kLine) {
            __builtin_prefetch(p + ahead + kLine / sizeof(Stored), 0, 2);
          }
          L::load(p, low, high);
        });
  }
  if (i < part.k) {
    step(
        i, [&](const auto* p, V& low, V& high)
               __attribute__((always_inline)) { L::load_part(p, static_cast<int>(part.k - i), low, high); });
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r += 4) {
      float four[4];
      V::sums(sums[r][m], sums[r + 1 < R ? r + 1 : r][m], sums[r + 2 < R ? r + 2 : r][m],
              sums[r + 3 < R ? r + 3 : r][m], four);
      for (int k = 0; k < 4 && r + k < R; ++k) part.out[m * part.out_stride + first + r + k] = four[k];
    }
  }
}

template <typename V, typename L, int M, bool prefetches>
void dot_all_rows(const MatvecPart& part) {
  constexpr int kRows = dot_row_count<V, M>();
  int64_t first = 0;
  for (; first + kRows <= part.count; first += kRows) dot_rows<V, L, M, kRows, prefetches>(part, first);
  for (; first < part.count; ++first) dot_rows<V, L, M, 1, prefetches>(part, first);
}

// w is [count, k].
template <typename V, typename L, int M>
void rows_part(const MatvecPart& part) {
  part.from_memory ? dot_all_rows<V, L, M, true>(part) : dot_all_rows<V, L, M, false>(part);
}

// Adds R rows of w, each times its entry of x, to the sums in `out`.
template <typename V, typename L, int M, int R>
inline void add_rows(const MatvecPart& part, int64_t first) {
  constexpr int kBlock = 2 * V::kWidth;
  const auto* w = static_cast<const typename L::Stored*>(part.w) + first * part.w_stride;
  const auto step = [&](int64_t column, auto&& load) __attribute__((always_inline)) {
    V low[R], high[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) load(w + r * part.w_stride + column, low[r], high[r]);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      float* const out = part.out + m * part.out_stride + column;
      V sum_low = V::load(out);
      V sum_high = V::load(out + V::kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V x = V::broadcast(part.x + m * part.x_stride + first + r);
        sum_low = V::fma(low[r], x, sum_low);
        sum_high = V::fma(high[r], x, sum_high);
      }
      sum_low.store(out);
      sum_high.store(out + V::kWidth);
    }
  };
  int64_t column = 0;
  for (; column + kBlock <= part.count; column += kBlock) {
    step(
        column, [&](const auto* p, V& low, V& high) __attribute__((always_inline)) {
          __builtin_prefetch(p + R * part.w_stride);
          L::load(p, low, high);
        });
  }
  if (column < part.count) {
    step(
        column, [&](const auto* p, V& low, V& high) __attribute__((always_inline)) {
          L::load_part(p, static_cast<int>(part.count - column), low, high);
        });
  }
}

// w is [k, count].
template <typename V, typename L, int M>
void columns_part(const MatvecPart& part) {
  constexpr int kBlock = 2 * V::kWidth;
  constexpr int kRows = V::kRegisters >= 32 ? (M <= 2 ? 8 : 4) : (M <= 2 ? 4 : 2);
  for (int m = 0; m < M; ++m) {
    for (int64_t i = 0; i < part.count; i += kBlock) {
      V::zero().store(part.out + m * part.out_stride + i);
      V::zero().store(part.out + m * part.out_stride + i + V::kWidth);
    }
  }
  int64_t first = 0;
  for (; first + kRows <= part.k; first += kRows) add_rows<V, L, M, kRows>(part, first);
  for (; first < part.k; ++first) add_rows<V, L, M, 1>(part, first);
}

// Dots may take elements in any order, columns must stay in theirs.
template <typename V, typename AnyOrder, typename InOrder>
constexpr void fill_kernels(MatvecKernels (&kernels)[2]) {
  kernels[0] = {
      &narrow_blocks<V, InOrder>,

      &prepare_row<V, AnyOrder>,
      {&rows_part<V, AnyOrder, 1>, &rows_part<V, AnyOrder, 2>, &rows_part<V, AnyOrder, 3>, &rows_part<V, AnyOrder, 4>,
       &rows_part<V, AnyOrder, 5>, &rows_part<V, AnyOrder, 6>, &rows_part<V, AnyOrder, 7>, &rows_part<V, AnyOrder, 8>}};
  kernels[1] = {&narrow_blocks<V, InOrder>,
                &prepare_row<V, InOrder>,
                {&columns_part<V, InOrder, 1>, &columns_part<V, InOrder, 2>, &columns_part<V, InOrder, 3>,
                 &columns_part<V, InOrder, 4>, &columns_part<V, InOrder, 5>, &columns_part<V, InOrder, 6>,
                 &columns_part<V, InOrder, 7>, &columns_part<V, InOrder, 8>}};
}

struct MatvecTableHolder {
  MatvecKernels kernels[3][2];
};

// REQUIRES: the loaders in the order of Element; bfloat16 has two.
template <typename V, typename Float32, typename Bfloat16, typename Bfloat16InOrder, typename Float16>
constexpr MatvecTableHolder make_matvec_table() {
  MatvecTableHolder holder{};
  fill_kernels<V, Float32, Float32>(holder.kernels[0]);
  fill_kernels<V, Bfloat16, Bfloat16InOrder>(holder.kernels[1]);
  fill_kernels<V, Float16, Float16>(holder.kernels[2]);
  return holder;
}

}  // namespace hetero::backend
