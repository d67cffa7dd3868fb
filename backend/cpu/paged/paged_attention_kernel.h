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
// says what a vector V and a loader L have. Loaders keep the order of memory, or have kSplits: the
// even elements of a block come before the odd ones.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/cpu/kernels/attention_kernel.h"

namespace hetero::backend {

inline constexpr int kPagedPiece = 32;         // tokens
inline constexpr int64_t kPagedBlock = 32;     // rows of floats are padded to so many elements
inline constexpr int64_t kPagedMostRows = 64;  // of a part
inline constexpr int kPagedFetchLevel = 2;     // into the first-level cache

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
  const float* query;  // [rows, stride]; two bfloat16 in the place of a float for paged_pairs()
  int64_t stride;      // of rows of queries and sums: head_size in whole kPagedBlocks
  int64_t head_size;
  float scale;  // of scores
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
  // The softmax and its sums. REQUIRES: they are -inf, 0 and zeros.
  float* largest;
  float* weights;  // their sums
  float* sums;     // [rows, stride]
};

// Computes parts of neighbouring heads, which have the same keys: pages are read from their begin
// to their end.
using PagedKernel = void (*)(const PagedPart* parts, int64_t count);
using PagedTable = PagedKernel[5];  // by CacheElement
const PagedTable& paged_avx512();
const PagedTable& paged_avx2();
// For bfloat16 queries and pages, where the processor multiplies pairs of bfloat16 (AVX512-BF16).
// Its products are exact, as those of floats are.
PagedKernel paged_pairs();

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

// Fetches a row of the next piece. Rows are asked for in the order of memory, one with each step of
// the work, so that memory is busy all the time and the processor's own prefetcher joins in.
template <typename V>
inline __attribute__((always_inline)) void fetch(const unsigned char* row, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(row + i, 0, kPagedFetchLevel);
}

// ---- scores

// How many tokens are multiplied at once with M rows: their sums, keys and a query fit in the
// registers.
template <typename V, int M>
constexpr int tokens_at_once() {
  if (V::kRegisters >= 32) return M <= 4 ? 4 : 2;
  return M == 1 ? 4 : M <= 3 ? 2 : 1;
}

// The sums of T tokens and M rows are the elements of these vectors, added up.
template <typename V, int M, int T>
inline __attribute__((always_inline)) void store_scores(const V (&sums)[T * M], int token, float* scores) {
#pragma GCC unroll 8
  for (int i = 0; i < T * M; i += 4) {
    constexpr int kLast = T * M - 1;
    float four[4];
    V::sums(sums[i], sums[i + 1 < kLast ? i + 1 : kLast], sums[i + 2 < kLast ? i + 2 : kLast],
            sums[i + 3 < kLast ? i + 3 : kLast], four);
    for (int k = 0; k < 4 && i + k < T * M; ++k) scores[(i + k) % M * kPagedPiece + token + (i + k) / M] = four[k];
  }
}

// The products of floats: queries are floats, and keys are made so. Another policy is in
// paged_attention_bfloat16.cpp.
template <typename V, typename L>
struct FloatProducts {
  template <int M, int T>
  static inline void multiply(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, int token,
                              const float* query, float* scores) {
    constexpr int kBlock = 2 * V::kWidth;
    using Stored = typename L::Stored;
    V sums[T * M];
#pragma GCC unroll 32
    for (int i = 0; i < T * M; ++i) sums[i] = V::zero();
    const auto step = [&](int64_t i, auto&& load) __attribute__((always_inline)) {
      V low[T], high[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) load(reinterpret_cast<const Stored*>(piece.keys[token + t]) + i, low[t], high[t]);
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
    const int64_t bytes = part.head_size * static_cast<int64_t>(sizeof(Stored));
    int64_t i = 0;
    int fetched = 0;
    for (; i + kBlock <= part.head_size; i += kBlock) {
      if (fetched < T) fetch<V>(next.keys[token + fetched++], bytes);
      step(
          i, [](const Stored* p, V& low, V& high) __attribute__((always_inline)) { L::load(p, low, high); });
    }
    if (i < part.head_size) {
      const int left = static_cast<int>(part.head_size - i);
      step(
          i, [left](const Stored* p, V& low, V& high)
                 __attribute__((always_inline)) { L::load_part(p, left, low, high); });
    }
    for (; fetched < T; ++fetched) fetch<V>(next.keys[token + fetched], bytes);
    store_scores<V, M, T>(sums, token, scores);
  }
};

// scores[m][t] for the piece's tokens.
template <typename V, typename Products, int M>
inline void multiply_piece(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, const float* query,
                           float* scores) {
  constexpr int T = tokens_at_once<V, M>();
  int token = 0;
  for (; token + T <= piece.count; token += T)
    Products::template multiply<M, T>(part, piece, next, token, query, scores);
  for (; token < piece.count; ++token) Products::template multiply<M, 1>(part, piece, next, token, query, scores);
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
  const V scale = V::of(part.scale);
  for (int t = 0; t < kPagedPiece; t += V::kWidth) {
    const V unit = part.keys.scales != nullptr ? V::mul(V::load(piece.key_scales + t), scale) : scale;
    V::mul(V::load(scores + t), unit).store(scores + t);
  }
  for (int t = piece.count; t < kPagedPiece; ++t) scores[t] = -__builtin_inff();
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
  const int64_t bytes = part.head_size * static_cast<int64_t>(sizeof(Stored));
  for (int t = 0; t < piece.count; ++t) {
    if (column == 0) fetch<V>(next.values[t], bytes);
    const auto* const row = reinterpret_cast<const Stored*>(piece.values[t]) + column;
    V v_low[B], v_high[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) {
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

// Whether one of these rows reads something of the piece.
template <typename V>
inline bool reads(const PagedPart& part, const PagedPiece& piece, int64_t row, int64_t rows) {
  const int64_t begin = piece.begin, end = begin + piece.count;
  for (int64_t r = row; r < row + rows; ++r) {
    if (begin < part.last[r] && (end > part.first[r] || begin < part.sinks)) return true;
  }
  return false;
}

// Calls use<M>(row) for groups of M rows.
template <typename V, typename Use>
inline __attribute__((always_inline)) void for_each_group(int64_t count, Use&& use) {
  int64_t row = 0;
  while (V::kRegisters >= 32 && count - row >= 8) {
    if constexpr (V::kRegisters >= 32) use.template operator()<8>(row);
    row += 8;
  }
  while (row < count) {
    const int64_t left = count - row;
    if constexpr (V::kRegisters >= 32) {
      if (left >= 6) {
        use.template operator()<6>(row);
        row += 6;
        continue;
      }
      if (left == 5) {
        use.template operator()<5>(row);
        row += 5;
        continue;
      }
    }
    switch (left < 4 ? left : 4) {
      case 1:
        use.template operator()<1>(row);
        row += 1;
        break;
      case 2:
        use.template operator()<2>(row);
        row += 2;
        break;
      case 3:
        use.template operator()<3>(row);
        row += 3;
        break;
      default:
        use.template operator()<4>(row);
        row += 4;
    }
  }
}

// The same code for every caller: it is large, and there is much of it.
template <typename V, typename Products, int M>
[[gnu::noinline]] void score_group(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, int64_t row,
                                   float* scores) {
  multiply_piece<V, Products, M>(part, piece, next, part.query + row * part.stride, scores);
}

template <typename V, typename L, int M>
[[gnu::noinline]] void add_group(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, int64_t row,
                                 float* scores) {
  for (int m = 0; m < M; ++m) soften_row<V>(part, piece, row + m, scores + m * kPagedPiece);
  add_values<V, L, M>(part, piece, next, scores, part.sums + row * part.stride);
}

template <typename V, typename Products>
void score_rows(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, float* scores) {
  const PagedPiece* ahead = &next;
  for_each_group<V>(part.rows, [&]<int M>(int64_t row) {
    if (!reads<V>(part, piece, row, M)) return;
    score_group<V, Products, M>(part, piece, *ahead, row, scores + row * kPagedPiece);
    ahead = &piece;  // it is fetched once
  });
}

template <typename V, typename L>
void add_rows_of_values(const PagedPart& part, const PagedPiece& piece, const PagedPiece& next, float* scores) {
  const PagedPiece* ahead = &next;
  for_each_group<V>(part.rows, [&]<int M>(int64_t row) {
    if (!reads<V>(part, piece, row, M)) return;
    add_group<V, L, M>(part, piece, *ahead, row, scores + row * kPagedPiece);
    ahead = &piece;
  });
}

// Gives sums the order of memory.
template <typename V, typename L>
inline void restore_order(const PagedPart& part) {
  if constexpr (requires { L::kSplits; }) {
    for (int64_t i = 0; i < part.rows * part.stride; i += 2 * V::kWidth) {
      float* const block = part.sums + i;
      V::interleave(V::load(block), V::load(block + V::kWidth), block);
    }
  }
}

// A piece's scores are computed before the values of the piece before it are added up. So they are
// in memory when they are read as vectors, and one's wait for memory is filled by the other's work.
template <typename V, typename L, typename Products = FloatProducts<V, L>>
void paged_parts(const PagedPart* parts, int64_t count) {
  struct Step {
    PagedPiece piece;
    const PagedPart* part;
  };
  Step steps[3];
  for (Step& step : steps) {
    // Lanes behind the last token are multiplied too.
    for (int t = 0; t < kPagedPiece; ++t) step.piece.key_scales[t] = step.piece.value_scales[t] = 0;
  }
  alignas(64) float scores[2][kPagedMostRows * kPagedPiece];
  int64_t begin = parts[0].begin, head = 0;
  const auto find_next = [&](Step & step) __attribute__((always_inline)) {
    if (begin >= parts[0].end) return false;
    step.part = parts + head;
    find_piece<V>(*step.part, begin, step.piece);
    if (++head == count) {
      head = 0;
      begin += kPagedPiece;
    }
    return true;
  };
  Step *now = steps, *next = steps + 1, *after = steps + 2;
  if (!find_next(*now)) return;
  bool has_next = find_next(*next);
  score_rows<V, Products>(*now->part, now->piece, has_next ? next->piece : now->piece, scores[0]);
  for (int current = 0;; current = 1 - current) {
    const bool has_after = has_next && find_next(*after);
    if (has_next) {
      score_rows<V, Products>(*next->part, next->piece, has_after ? after->piece : next->piece, scores[1 - current]);
    }
    add_rows_of_values<V, L>(*now->part, now->piece, has_next ? next->piece : now->piece, scores[current]);
    if (!has_next) break;
    Step* const done = now;
    now = next;
    next = after;
    after = done;
    has_next = has_after;
  }
  for (int64_t i = 0; i < count; ++i) restore_order<V, L>(parts[i]);
}

struct PagedTableHolder {
  PagedKernel kernels[5];
};

// REQUIRES: the loaders in the order of CacheElement; bfloat16 has two.
template <typename V, typename Float32, typename Bfloat16, typename Bfloat16InOrder, typename Float16, typename Int8,
          typename Float8>
constexpr PagedTableHolder make_paged_table() {
  return {{&paged_parts<V, Float32>, &paged_parts<V, Bfloat16, FloatProducts<V, Bfloat16InOrder>>,
           &paged_parts<V, Float16>, &paged_parts<V, Int8>, &paged_parts<V, Float8>}};
}

}  // namespace hetero::backend
