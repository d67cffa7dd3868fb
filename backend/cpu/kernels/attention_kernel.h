// The inner loops of attention.h: templates over a vector of floats, compiled once per instruction
// set.
//
// attention_avx512.cpp and attention_avx2.cpp are compiled with their own flags. The linker must
// not take a function of theirs in place of one for every processor. So this header includes
// nothing of the standard library that has code, and everything in it is a template over a type of
// the including file's unnamed namespace. matvec_kernel.h does the same.
//
// A vector type V has kWidth, kRegisters and the functions of AVX2's (attention_avx2.cpp). In
// `first` and its like, only the first n elements count.
//
// Packed matrices: a matrix [rows, columns] is stored in panels of panel_columns<V>() columns, the
// last one narrower. A panel holds its rows one after another, so a product reads it from begin to
// end. Columns are padded with zeros to whole vectors.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/cpu/vector/instruction_set.h"
#include "backend/cpu/vector/transpose.h"

namespace hetero::backend {

// The widest vector, in floats. Rows of scores and of sums are padded to whole vectors.
inline constexpr int64_t kAttentionMaxWidth = 16;

// Matrices [rows, columns] of several heads, packed together: interleaved heads are read in memory
// order.
struct AttentionPacking {
  const float* from;
  int64_t stride;
  int64_t rows;
  int64_t columns;
  float* to;
  int64_t heads = 1;
  int64_t head_stride = 0;
  int64_t to_head_stride = 0;
};

// c = a * b, or c += a * b, for the first `steps` rows and `columns` columns of a packed b. Whole
// vectors of c are written.
struct AttentionProduct {
  const float* a;
  int64_t a_stride;
  bool a_transposed;  // false: a is [rows, steps]; true: [steps, rows]
  const float* b;
  int64_t b_rows;
  int64_t b_columns;
  float* c;
  int64_t c_stride;
  int64_t rows;
  int64_t steps;
  int64_t columns;
  bool add;
};

// Rows of scores: the products of queries and keys. Row r attends to its first min(columns,
// diagonal + r + 1) columns.
struct AttentionScores {
  float* scores;
  int64_t stride;
  int64_t rows;
  int64_t columns;
  int64_t diagonal;
  float scale;
  const float* mask = nullptr;  // added to the scaled scores; null for none
  int64_t mask_stride = 0;
  bool mask_by_row = false;  // one number for each row, instead of one for each column
};

// A softmax that continues from block to block of columns.
struct AttentionSoftmax {
  float* largest;  // of each row so far; -inf before the first block
  float* sums;     // of exp(score - largest); 0 before the first block
  bool first;      // the first block: nothing is in `out`
  // [rows, out_columns]: what was summed up so far, multiplied by what the sums are multiplied by.
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t out_columns = 0;
};

// Turns scores into weights, exp(score - logsumexp), and gradients of weights into gradients of
// scaled scores, weight * (gradient - dot).
struct AttentionGradients {
  float* gradients;  // in the shape of the scores
  const float* logsumexp;
  const float* dots;
};

// The functions of an instruction set.
struct AttentionKernels {
  void (*pack)(const AttentionPacking& packing);
  // The packed transposes, [columns, rows].
  void (*pack_transposed)(const AttentionPacking& packing);
  void (*multiply)(const AttentionProduct& product);
  // Turns scores into exp(score - largest). Columns that are not attended to become 0, to whole
  // vectors.
  void (*soften)(const AttentionScores& scores, const AttentionSoftmax& softmax);
  void (*differentiate)(const AttentionScores& scores, const AttentionGradients& gradients);
  // to[r] = from[r] * factors[r * factor_step].
  void (*scale_rows)(const float* from, int64_t from_stride, int64_t rows, int64_t columns, const float* factors,
                     int64_t factor_step, float* to, int64_t to_stride);
  // out[r] = the sum of x[r] * y[r].
  void (*dot_rows)(const float* x, int64_t x_stride, const float* y, int64_t y_stride, int64_t rows, int64_t columns,
                   float* out);
  // values[i] = exp(values[i]), for values up to 88.
  void (*exponentials)(float* values, int64_t count);
};

// A matrix of bfloat16 whose rows are packed in pairs: an element of a row and that of the next
// one, in the place of a float. After an odd row there are zeros.
struct AttentionPairPacking {
  const uint16_t* from;
  int64_t stride;
  int64_t rows;
  int64_t columns;
  float* to;
};

// The functions of a processor with instructions for pairs of bfloat16. Pairs take the place of
// floats, and strides, rows and steps count them.
struct AttentionPairKernels {
  void (*pack)(const AttentionPairPacking& packing);
  // Rows of floats to rows of pairs, rounded. `columns` is taken to whole vectors.
  void (*narrow)(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride);
  // Of pairs, to floats. REQUIRES: a is not transposed.
  void (*multiply)(const AttentionProduct& product);
};
const AttentionPairKernels& attention_pairs();

const AttentionKernels& attention_avx512();
const AttentionKernels& attention_avx2();
// REQUIRES: set <= instruction_set().
const AttentionKernels& attention_kernels(InstructionSet set);

template <typename V>
constexpr int64_t panel_columns() {
  return (V::kRegisters >= 32 ? 4 : 2) * V::kWidth;
}

template <typename V>
constexpr int64_t whole_vectors(int64_t columns) {
  return (columns + V::kWidth - 1) / V::kWidth * V::kWidth;
}

// ---- packing

// Columns of a panel of a matrix with so many columns.
template <typename V>
inline int64_t panel_width(int64_t columns, int64_t first) {
  const int64_t left = whole_vectors<V>(columns) - first;
  return left < panel_columns<V>() ? left : panel_columns<V>();
}

template <typename V>
void pack(const AttentionPacking& packing) {
  for (int64_t row = 0; row < packing.rows; ++row) {
    for (int64_t head = 0; head < packing.heads; ++head) {
      const float* const from = packing.from + head * packing.head_stride + row * packing.stride;
      float* const to = packing.to + head * packing.to_head_stride;
      for (int64_t first = 0; first < packing.columns; first += panel_columns<V>()) {
        const int64_t width = panel_width<V>(packing.columns, first);
        float* const place = to + first * packing.rows + row * width;
        for (int64_t i = 0; i < width; i += V::kWidth) {
          const int64_t left = packing.columns - first - i;
          const V piece =
              left >= V::kWidth ? V::load(from + first + i) : V::load_first(from + first + i, static_cast<int>(left));
          piece.store(place + i);
        }
      }
    }
  }
}

template <typename V>
void pack_transposed(const AttentionPacking& packing) {
  for (int64_t row = 0; row < packing.rows; row += V::kWidth) {
    const int64_t first = row / panel_columns<V>() * panel_columns<V>();
    const int64_t width = panel_width<V>(packing.rows, first);
    for (int64_t head = 0; head < packing.heads; ++head) {
      transpose_rows<V>(packing.from + head * packing.head_stride + row * packing.stride, packing.stride,
                        packing.rows - row, packing.columns,
                        packing.to + head * packing.to_head_stride + first * packing.columns + row - first, width);
    }
  }
}

// ---- products

// R rows and C vectors of c, with the sums in registers.
template <typename V, int R, int C, bool transposed>
inline void multiply_tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t steps, float* c,
                          int64_t c_stride, bool add) {
  V sums[R][C];
  if (add) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < C; ++i) sums[r][i] = V::load(c + r * c_stride + i * V::kWidth);
    }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < C; ++i) sums[r][i] = V::zero();
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    V row[C];
#pragma GCC unroll 4
    for (int i = 0; i < C; ++i) row[i] = V::keep(V::load(b + i * V::kWidth));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V x = V::keep(V::broadcast(transposed ? a + r : a + r * a_stride));
#pragma GCC unroll 4
      for (int i = 0; i < C; ++i) sums[r][i] = V::fma(x, row[i], sums[r][i]);
    }
    a += transposed ? a_stride : 1;
    b += b_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < C; ++i) sums[r][i].store(c + r * c_stride + i * V::kWidth);
  }
}

// As many rows at once as fit their sums in registers, with C vectors of b and one of a.
template <typename V, int C>
constexpr int tile_rows() {
  if (V::kRegisters >= 32) return C == 4 ? 6 : 8;
  return C == 2 ? 6 : 8;
}

template <typename V, int C, bool transposed>
void multiply_panel(const AttentionProduct& product, const float* b, int64_t b_stride, float* c) {
  constexpr int kRows = tile_rows<V, C>();
  int64_t row = 0;
  const auto rows = [&]<int R>() __attribute__((always_inline)) {
    multiply_tile<V, R, C, transposed>(product.a + (transposed ? row : row * product.a_stride), product.a_stride, b,
                                       b_stride, product.steps, c + row * product.c_stride, product.c_stride,
                                       product.add);
    row += R;
  };
  while (product.rows - row >= kRows) rows.template operator()<kRows>();
  if (product.rows - row >= 4) rows.template operator()<4>();
  if (product.rows - row >= 2) rows.template operator()<2>();
  if (product.rows - row >= 1) rows.template operator()<1>();
}

template <typename V, bool transposed>
void multiply_in_order(const AttentionProduct& product) {
  const int64_t padded = whole_vectors<V>(product.b_columns);
  for (int64_t first = 0; first < product.columns; first += panel_columns<V>()) {
    const int64_t stride = padded - first < panel_columns<V>() ? padded - first : panel_columns<V>();
    const int64_t left = whole_vectors<V>(product.columns - first);
    const float* const b = product.b + first * product.b_rows;
    float* const c = product.c + first;
    switch ((left < stride ? left : stride) / V::kWidth) {
      case 1:
        multiply_panel<V, 1, transposed>(product, b, stride, c);
        break;
      case 2:
        multiply_panel<V, 2, transposed>(product, b, stride, c);
        break;
      default:
        if constexpr (panel_columns<V>() > 2 * V::kWidth) {
          if (left < stride ? left == 3 * V::kWidth : stride == 3 * V::kWidth) {
            multiply_panel<V, 3, transposed>(product, b, stride, c);
          } else {
            multiply_panel<V, 4, transposed>(product, b, stride, c);
          }
        }
    }
  }
}

template <typename V>
void multiply(const AttentionProduct& product) {
  if (product.a_transposed) {
    multiply_in_order<V, true>(product);
  } else {
    multiply_in_order<V, false>(product);
  }
}

// ---- softmax

// e^x within one unit in the last place (two without fused multiply-add), for x <= 88; 0 where that
// would be denormal, NaN for NaN. x = n ln 2 + r, |r| <= ln 2 / 2. The polynomial is the best one
// of degree 6 that begins with 1 + r, by Remez' algorithm on the relative error, with coefficients
// rounded to float.
template <typename V>
inline V exponential(V x) {
  // Adding 1.5 * 2^23 rounds to an integer in the last bits, to which 127 more makes an exponent.
  const V shifter = V::of(12582912.0f + 127.0f);
  const V shifted = V::fma(x, V::of(1.44269504f), shifter);
  const V n = V::sub(shifted, shifter);
  // ln 2 in two parts, the first one short.
  V r = V::fma(n, V::of(-0x1.62e4p-1f), x);
  r = V::fma(n, V::of(-0x1.7f7d1cp-20f), r);
  V p = V::fma(V::of(0x1.6a23d0p-10f), r, V::of(0x1.123a20p-7f));
  p = V::fma(p, r, V::of(0x1.5558f2p-5f));
  p = V::fma(p, r, V::of(0x1.555492p-3f));
  p = V::fma(p, r, V::of(0x1.fffffcp-2f));
  p = V::fma(p, r, V::of(1.0f));
  p = V::fma(p, r, V::of(1.0f));
  return V::zero_below(V::mul(p, V::exponent(shifted)), x, -87.336544f);
}

template <typename V>
void exponentials(float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += V::kWidth) {
    const int left = static_cast<int>(count - i < V::kWidth ? count - i : V::kWidth);
    exponential(V::load_first(values + i, left)).store_first(values + i, left);
  }
}

// How many columns row `row` attends to.
template <typename V>
inline int64_t attended(int64_t columns, int64_t diagonal, int64_t row) {
  const int64_t count = diagonal + row + 1;
  return count < 0 ? 0 : count < columns ? count : columns;
}

// Calls use(offset, n) for each vector of a row's first `count` columns, of which n elements count.
template <typename V, typename Use>
inline __attribute__((always_inline)) void for_each_vector(int64_t count, Use&& use) {
  int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) use(i, V::kWidth);
  if (i < count) use(i, static_cast<int>(count - i));
}

template <typename V>
inline __attribute__((always_inline)) V mask_at(const AttentionScores& scores, int64_t row, int64_t i, int n) {
  const float* const mask = scores.mask + row * scores.mask_stride;
  if (scores.mask_by_row) return V::broadcast(mask);
  return n == V::kWidth ? V::load(mask + i) : V::load_first(mask + i, n);
}

template <typename V>
inline void clear(float* row, int64_t from, int64_t columns) {
  for (int64_t i = from; i < columns; i += V::kWidth) V::zero().store(row + i);
}

template <typename V>
void soften(const AttentionScores& scores, const AttentionSoftmax& softmax) {
  constexpr float kInfinity = __builtin_inff();
  for (int64_t r = 0; r < scores.rows; ++r) {
    float* const row = scores.scores + r * scores.stride;
    const int64_t count = attended<V>(scores.columns, scores.diagonal, r);
    const V none = V::of(-kInfinity);
    // A mask and a negative scale need the scores themselves. Otherwise the largest product has the
    // largest score.
    const bool scaled = scores.mask != nullptr || !(scores.scale > 0);
    const V scale = V::of(scores.scale);
    V tops[4] = {none, none, none, none};
    if (scaled) {
      for_each_vector<V>(
          count, [&](int64_t i, int n) __attribute__((always_inline)) {
            V score = V::mul(V::load(row + i), scale);
            if (scores.mask != nullptr) score = V::add(score, mask_at<V>(scores, r, i, n));
            score.store(row + i);
            tops[0] = V::max(V::first(score, n, none), tops[0]);
          });
    } else {
      int64_t i = 0;
      for (; i + 4 * V::kWidth <= count; i += 4 * V::kWidth) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) tops[k] = V::max(V::load(row + i + k * V::kWidth), tops[k]);
      }
      for_each_vector<V>(
          count - i, [&](int64_t k, int n) __attribute__((always_inline)) {
            tops[0] = V::max(V::first(V::load(row + i + k), n, none), tops[0]);
          });
    }
    const float unit = scaled ? 1.0f : scores.scale;
    const float top = V::max(V::max(tops[0], tops[1]), V::max(tops[2], tops[3])).largest() * unit;
    const float before = softmax.largest[r];
    const float largest = top > before ? top : before;
    // If a row attends to nothing, all exponentials are 0, and NaN stays NaN.
    const float shift = largest == -kInfinity ? 0.0f : largest;
    const V units = V::of(unit), negative = V::of(-shift);
    V sum = V::zero();
    for_each_vector<V>(
        count, [&](int64_t i, int n) __attribute__((always_inline)) {
          V weight = exponential(V::fma(V::load(row + i), units, negative));
          if (n < V::kWidth) weight = V::first(weight, n, V::zero());
          weight.store(row + i);
          sum = V::add(sum, weight);
        });
    clear<V>(row, whole_vectors<V>(count), scores.columns);
    softmax.largest[r] = largest;
    if (softmax.first) {
      softmax.sums[r] = sum.sum();
      continue;
    }
    const V factor = exponential(V::of(before - shift));
    float one[V::kWidth];
    factor.store(one);
    softmax.sums[r] = softmax.sums[r] * one[0] + sum.sum();
    if (one[0] == 1.0f) continue;
    float* const out = softmax.out + r * softmax.out_stride;
    for (int64_t i = 0; i < softmax.out_columns; i += V::kWidth) V::mul(V::load(out + i), factor).store(out + i);
  }
}

template <typename V>
void differentiate(const AttentionScores& scores, const AttentionGradients& gradients) {
  for (int64_t r = 0; r < scores.rows; ++r) {
    float* const row = scores.scores + r * scores.stride;
    float* const gradient = gradients.gradients + r * scores.stride;
    const int64_t count = attended<V>(scores.columns, scores.diagonal, r);
    const V scale = V::of(scores.scale);
    const V logsumexp = V::of(gradients.logsumexp[r]);
    const V dot = V::of(gradients.dots[r]);
    for_each_vector<V>(
        count, [&](int64_t i, int n) __attribute__((always_inline)) {
          V score = V::mul(V::load(row + i), scale);
          if (scores.mask != nullptr) score = V::add(score, mask_at<V>(scores, r, i, n));
          V weight = exponential(V::sub(score, logsumexp));
          V change = V::mul(weight, V::sub(V::load(gradient + i), dot));
          if (n < V::kWidth) {
            weight = V::first(weight, n, V::zero());
            change = V::first(change, n, V::zero());
          }
          weight.store(row + i);
          change.store(gradient + i);
        });
    clear<V>(row, whole_vectors<V>(count), scores.columns);
    clear<V>(gradient, whole_vectors<V>(count), scores.columns);
  }
}

template <typename V>
void scale_rows(const float* from, int64_t from_stride, int64_t rows, int64_t columns, const float* factors,
                int64_t factor_step, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const V factor = V::broadcast(factors + r * factor_step);
    for_each_vector<V>(
        columns, [&](int64_t i, int n) __attribute__((always_inline)) {
          const V value = V::mul(V::load(from + r * from_stride + i), factor);
          if (n == V::kWidth) {
            value.store(to + r * to_stride + i);
          } else {
            value.store_first(to + r * to_stride + i, n);
          }
        });
  }
}

template <typename V>
void dot_rows(const float* x, int64_t x_stride, const float* y, int64_t y_stride, int64_t rows, int64_t columns,
              float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    V sum = V::zero();
    for_each_vector<V>(
        columns, [&](int64_t i, int n) __attribute__((always_inline)) {
          sum = V::fma(V::load_first(x + r * x_stride + i, n), V::load_first(y + r * y_stride + i, n), sum);
        });
    out[r] = sum.sum();
  }
}

template <typename V>
constexpr AttentionKernels make_attention_kernels() {
  return {&pack<V>,          &pack_transposed<V>, &multiply<V>, &soften<V>,
          &differentiate<V>, &scale_rows<V>,      &dot_rows<V>, &exponentials<V>};
}

}  // namespace hetero::backend
