// The inner loops of paged_attention.h: templates over a vector of floats and a loader, compiled
// once per instruction set.
//
// 1. Keys are taken in pieces of up to kPagedPiece tokens, wherever their pages are: a piece is a
//    list of addresses. What the next piece needs is fetched meanwhile, because the processor's
//    prefetchers stop at the end of a page.
// 2. Rows of queries are multiplied with the piece, several rows and tokens at a time.
// 3. Scores become weights by an online softmax.
// 4. Values are added up with these weights.
//
// paged_attention_avx512.cpp and paged_attention_avx2.cpp are compiled with their own flags. As in
// attention_kernel.h, nothing of the standard library that has code is included here, and
// everything is a template over types of the including file's unnamed namespace. matvec_kernel.h
// says what a vector V and a loader L have; loaders keep the order of memory here.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/cpu/kernels/attention_kernel.h"

namespace hetero::backend {

inline constexpr int kPagedPiece = 32;         // tokens
inline constexpr int64_t kPagedBlock = 32;     // rows of floats are padded to so many elements
inline constexpr int64_t kPagedMostRows = 64;  // of a part
inline constexpr int kPagedFetchLevel = 3;     // into the first-level cache

// The keys and values of one head, in pages. Strides count bytes.
struct PagedSide {
  const unsigned char* data;
  int64_t page_stride;
  int64_t token_stride;
  const float* scales;
  int64_t scale_page_stride;  // in floats
  int64_t scale_token_stride;
};

// Rows of queries over the keys [begin, end) of one sequence and head.
struct PagedPart {
  int64_t rows;
  const float* query;  // [rows, stride], scaled
  int64_t stride;      // of rows of queries and sums: head_size in whole kPagedBlocks
  int64_t head_size;
  // Row r reads the keys from first[r], and those before `sinks`, up to last[r].
  const int64_t* first;
  const int64_t* last;
  int64_t sinks;
  PagedSide keys;
  PagedSide values;
  const int32_t* table;
  int64_t page_tokens;
  int64_t begin;
  int64_t end;
  // The softmax so far: continued. Starts with -inf, 0 and zeros.
  float* largest;
  float* weights;  // their sums
  float* sums;     // [rows, stride]
};

using PagedKernel = void (*)(const PagedPart& part);
using PagedTable = PagedKernel[5];  // by CacheElement
const PagedTable& paged_avx512();
const PagedTable& paged_avx2();

// A piece of keys and values, by address.
struct PagedPiece {
  int64_t begin;
  int count;
  const unsigned char* keys[kPagedPiece];
  const unsigned char* values[kPagedPiece];
  float key_scales[kPagedPiece];
  float value_scales[kPagedPiece];
};

template <typename V>
inline void find_piece(const PagedPart& part, int64_t begin, PagedPiece& piece) {
  piece.begin = begin;
  const int64_t left = part.end - begin;
  piece.count = static_cast<int>(left < kPagedPiece ? left : kPagedPiece);
  int64_t block = begin / part.page_tokens, place = begin % part.page_tokens;
  for (int i = 0; i < piece.count; ++block, place = 0) {
    const int64_t page = part.table[block];
    const unsigned char* const keys = part.keys.data + page * part.keys.page_stride;
    const unsigned char* const values = part.values.data + page * part.values.page_stride;
    const int64_t first = place - i;
    for (; i < piece.count && first + i < part.page_tokens; ++i) {
      piece.keys[i] = keys + (first + i) * part.keys.token_stride;
      piece.values[i] = values + (first + i) * part.values.token_stride;
      if (part.keys.scales == nullptr) continue;
      piece.key_scales[i] =
          part.keys.scales[page * part.keys.scale_page_stride + (first + i) * part.keys.scale_token_stride];
      piece.value_scales[i] =
          part.values.scales[page * part.values.scale_page_stride + (first + i) * part.values.scale_token_stride];
    }
  }
  // What is fetched ahead of time for tokens that there are not.
  for (int i = piece.count; i < kPagedPiece; ++i) {
    piece.keys[i] = piece.keys[0];
    piece.values[i] = piece.values[0];
  }
}

// Fetches what the next piece has at the place of a block that is used now, so that memory is asked
// as evenly as it can answer.
template <typename V, typename Stored>
inline __attribute__((always_inline)) void fetch(const unsigned char* row, int64_t element) {
  constexpr int64_t kLine = 64;
  constexpr int64_t kBytes = 2 * V::kWidth * static_cast<int64_t>(sizeof(Stored));
  const unsigned char* const place = row + element * static_cast<int64_t>(sizeof(Stored));
  __builtin_prefetch(place, 0, kPagedFetchLevel);
  if constexpr (kBytes > kLine) __builtin_prefetch(place + kLine, 0, kPagedFetchLevel);
}

// ---- scores

// How many tokens are multiplied at once with M rows: their sums, keys and a query fit in the
// registers.
template <typename V, int M>
constexpr int tokens_at_once() {
  if (V::kRegisters >= 32) return M <= 4 ? 4 : 2;
  return M == 1 ? 4 : M <= 3 ? 2 : 1;
}

template <typename V, typename L, int M, int T>
inline void multiply_tokens(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, int token,
                            const float* query, float* scores) {
  constexpr int kBlock = 2 * V::kWidth;
  using Stored = typename L::Stored;
  V sums[T * M];
#pragma GCC unroll 32
  for (int i = 0; i < T * M; ++i) sums[i] = V::zero();
  const auto step = [&](int64_t i, auto&& load) __attribute__((always_inline)) {
    V low[T], high[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      fetch<V, Stored>(next.keys[token + t], i);
      load(reinterpret_cast<const Stored*>(piece.keys[token + t]) + i, low[t], high[t]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const V x_low = V::keep(V::load(query + m * part.stride + i));
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) sums[t * M + m] = V::fma(low[t], x_low, sums[t * M + m]);
      const V x_high = V::keep(V::load(query + m * part.stride + i + V::kWidth));
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) sums[t * M + m] = V::fma(high[t], x_high, sums[t * M + m]);
    }
  };
  int64_t i = 0;
  for (; i + kBlock <= part.head_size; i += kBlock) {
    step(
        i, [](const Stored* p, V& low, V& high) __attribute__((always_inline)) { L::load(p, low, high); });
  }
  if (i < part.head_size) {
    const int left = static_cast<int>(part.head_size - i);
    step(
        i, [left](const Stored* p, V& low, V& high)
               __attribute__((always_inline)) { L::load_part(p, left, low, high); });
  }
#pragma GCC unroll 8
  for (int i = 0; i < T * M; i += 4) {
    constexpr int kLast = T * M - 1;
    float four[4];
    V::sums(sums[i], sums[i + 1 < kLast ? i + 1 : kLast], sums[i + 2 < kLast ? i + 2 : kLast],
            sums[i + 3 < kLast ? i + 3 : kLast], four);
    for (int k = 0; k < 4 && i + k < T * M; ++k) scores[(i + k) % M * kPagedPiece + token + (i + k) / M] = four[k];
  }
}

// scores[m][t] for the piece's tokens, and -inf behind them.
template <typename V, typename L, int M>
inline void multiply_piece(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, const float* query,
                           float* scores) {
  constexpr int T = tokens_at_once<V, M>();
  int token = 0;
  for (; token + T <= piece.count; token += T) multiply_tokens<V, L, M, T>(part, piece, next, token, query, scores);
  for (; token < piece.count; ++token) multiply_tokens<V, L, M, 1>(part, piece, next, token, query, scores);
  for (; token < kPagedPiece; ++token) {
    for (int m = 0; m < M; ++m) scores[m * kPagedPiece + token] = -__builtin_inff();
  }
}

// ---- softmax

// What row r does not read gets -inf.
template <typename V>
inline void hide(const PagedPart& part, const PagedPiece& piece, int64_t row, float* scores) {
  const int64_t first = part.first[row], last = part.last[row];
  const int64_t begin = piece.begin, end = begin + piece.count;
  if (end <= last && (begin >= first || end <= part.sinks)) return;
  for (int t = 0; t < piece.count; ++t) {
    const int64_t key = begin + t;
    if (key >= last || (key < first && key >= part.sinks)) scores[t] = -__builtin_inff();
  }
}

// Turns a row of scores into weights, and continues its softmax.
template <typename V>
inline void soften_row(const PagedPart& part, const PagedPiece& piece, int64_t row, float* scores) {
  if (part.keys.scales != nullptr) {
    for (int t = 0; t < kPagedPiece; t += V::kWidth) {
      V::mul(V::load(scores + t), V::load(piece.key_scales + t)).store(scores + t);
    }
    for (int t = piece.count; t < kPagedPiece; ++t) scores[t] = -__builtin_inff();
  }
  hide<V>(part, piece, row, scores);
  V top = V::of(-__builtin_inff());
  for (int t = 0; t < kPagedPiece; t += V::kWidth) top = V::max(V::load(scores + t), top);
  const float before = part.largest[row];
  const float largest_here = top.largest();
  const float largest = largest_here > before ? largest_here : before;
  // If a row reads nothing, all exponentials are 0, and NaN stays NaN.
  const float shift = largest == -__builtin_inff() ? 0.0f : largest;
  const V negative = V::of(-shift);
  V sum = V::zero();
  for (int t = 0; t < kPagedPiece; t += V::kWidth) {
    const V weight = exponential(V::add(V::load(scores + t), negative));
    sum = V::add(sum, weight);
    weight.store(scores + t);
  }
  part.largest[row] = largest;
  if (largest == before) {
    part.weights[row] += sum.sum();
  } else {
    const V factor = exponential(V::of(before - shift));
    float one[V::kWidth];
    factor.store(one);
    part.weights[row] = part.weights[row] * one[0] + sum.sum();
    float* const sums = part.sums + row * part.stride;
    for (int64_t i = 0; i < part.stride; i += V::kWidth) V::mul(V::load(sums + i), factor).store(sums + i);
  }
  if (part.values.scales == nullptr) return;
  for (int t = 0; t < kPagedPiece; t += V::kWidth) {
    V::mul(V::load(scores + t), V::load(piece.value_scales + t)).store(scores + t);
  }
}

// ---- values

// Adds B blocks of columns of the piece's values, times their weights, to M rows of sums.
// `left` counts the elements of a last block that is not whole.
template <typename V, typename L, int M, int B, bool whole>
inline void add_columns(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, const float* weights,
                        float* sums, int64_t column, int left) {
  constexpr int kBlock = 2 * V::kWidth;
  using Stored = typename L::Stored;
  V low[M][B], high[M][B];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      low[m][b] = V::load(sums + m * part.stride + b * kBlock);
      high[m][b] = V::load(sums + m * part.stride + b * kBlock + V::kWidth);
    }
  }
  for (int t = 0; t < piece.count; ++t) {
    const auto* const row = reinterpret_cast<const Stored*>(piece.values[t]) + column;
    V v_low[B], v_high[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      fetch<V, Stored>(next.values[t], column + b * kBlock);
      if constexpr (whole) {
        L::load(row + b * kBlock, v_low[b], v_high[b]);
      } else {
        L::load_part(row + b * kBlock, left, v_low[b], v_high[b]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const V weight = V::keep(V::broadcast(weights + m * kPagedPiece + t));
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) {
        low[m][b] = V::fma(weight, v_low[b], low[m][b]);
        high[m][b] = V::fma(weight, v_high[b], high[m][b]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
      low[m][b].store(sums + m * part.stride + b * kBlock);
      high[m][b].store(sums + m * part.stride + b * kBlock + V::kWidth);
    }
  }
}

template <typename V, int M>
constexpr int blocks_at_once() {
  if (V::kRegisters >= 32) return M <= 2 ? 4 : M <= 5 ? 2 : 1;
  return M <= 2 ? 2 : 1;
}

template <typename V, typename L, int M>
inline void add_values(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, const float* weights,
                       float* sums) {
  constexpr int kBlock = 2 * V::kWidth;
  constexpr int B = blocks_at_once<V, M>();
  int64_t column = 0;
  for (; column + B * kBlock <= part.head_size; column += B * kBlock) {
    add_columns<V, L, M, B, true>(part, piece, next, weights, sums + column, column, 0);
  }
  if constexpr (B > 1) {
    for (; column + kBlock <= part.head_size; column += kBlock) {
      add_columns<V, L, M, 1, true>(part, piece, next, weights, sums + column, column, 0);
    }
  }
  if (column < part.head_size) {
    const int left = static_cast<int>(part.head_size - column);
    add_columns<V, L, M, 1, false>(part, piece, next, weights, sums + column, column, left);
  }
}

// ---- a part

// M rows over a piece. Rows that read nothing of it are left out.
template <typename V, typename L, int M>
void rows_of_piece(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, int64_t row) {
  const int64_t begin = piece.begin, end = begin + piece.count;
  bool reads = false;
  for (int64_t r = row; r < row + M; ++r) {
    reads |= begin < part.last[r] && (end > part.first[r] || begin < part.sinks);
  }
  if (!reads) return;
  alignas(64) float scores[M * kPagedPiece];
  multiply_piece<V, L, M>(part, piece, next, part.query + row * part.stride, scores);
  for (int m = 0; m < M; ++m) soften_row<V>(part, piece, row + m, scores + m * kPagedPiece);
  add_values<V, L, M>(part, piece, next, scores, part.sums + row * part.stride);
}

template <typename V, typename L>
void all_rows_of_piece(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next) {
  const PagedPiece* ahead = &next;
  int64_t row = 0;
  const auto rows = [&]<int M>() __attribute__((always_inline)) {
    rows_of_piece<V, L, M>(part, piece, *ahead, row);
    ahead = &piece;  // it is fetched once
    row += M;
  };
  while (row < part.rows) {
    const int64_t left = part.rows - row;
    if constexpr (V::kRegisters >= 32) {
      if (left >= 8) {
        rows.template operator()<8>();
        continue;
      }
      if (left >= 6) {
        rows.template operator()<6>();
        continue;
      }
      if (left == 5) {
        rows.template operator()<5>();
        continue;
      }
    }
    switch (left < 4 ? left : 4) {
      case 1:
        rows.template operator()<1>();
        break;
      case 2:
        rows.template operator()<2>();
        break;
      case 3:
        rows.template operator()<3>();
        break;
      default:
        rows.template operator()<4>();
    }
  }
}

template <typename V, typename L>
void paged_part(const PagedPart& part) {
  PagedPiece pieces[2];
  for (PagedPiece& piece : pieces) {
    // Lanes behind the last token are multiplied too.
    for (int t = 0; t < kPagedPiece; ++t) piece.key_scales[t] = piece.value_scales[t] = 0;
  }
  int current = 0;
  find_piece<V>(part, part.begin, pieces[0]);
  for (int64_t begin = part.begin; begin < part.end; begin += kPagedPiece) {
    const bool last = begin + kPagedPiece >= part.end;
    if (!last) find_piece<V>(part, begin + kPagedPiece, pieces[1 - current]);
    all_rows_of_piece<V, L>(part, pieces[current], pieces[last ? current : 1 - current]);
    current = 1 - current;
  }
}

struct PagedTableHolder {
  PagedKernel kernels[5];
};

// REQUIRES: the loaders in the order of CacheElement.
template <typename V, typename Float32, typename Bfloat16, typename Float16, typename Int8, typename Float8>
constexpr PagedTableHolder make_paged_table() {
  return {{&paged_part<V, Float32>, &paged_part<V, Bfloat16>, &paged_part<V, Float16>, &paged_part<V, Int8>,
           &paged_part<V, Float8>}};
}

}  // namespace hetero::backend
