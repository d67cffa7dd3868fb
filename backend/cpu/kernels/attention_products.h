// The products of attention's forward pass, by vectors, by pairs of bfloat16, or on the tile unit.
// attention.cpp alone includes it.
//
// Each class has the same functions, for blocks of keys and tiles of queries: what packing takes,
// packing, scores of a tile, and what their weights gather from the values. Memory is given by the
// caller, in floats.
//
// Thread safety: an object belongs to one thread.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "backend/base/rounding.h"
#include "backend/cpu/kernels/attention_call.h"
#include "backend/cpu/kernels/attention_kernel.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "backend/cpu/kernels/tile_kernel.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend::attention {

inline int64_t padded(int64_t columns) { return round_up(columns, kAttentionMaxWidth); }

// One piece of the calling thread's scratch memory for each size, in floats.
template <size_t count>
std::array<float*, count> scratch(const std::array<int64_t, count>& sizes) {
  static thread_local Scratch memory;
  constexpr int64_t kLine = 16;
  int64_t total = 0;
  for (const int64_t size : sizes) total += round_up(size, kLine);
  auto* next = memory.get<float>(total);
  std::array<float*, count> pieces;
  for (size_t i = 0; i < count; ++i) {
    pieces[i] = next;
    next += round_up(sizes[i], kLine);
  }
  return pieces;
}

struct Place {
  int64_t batch;
  int64_t head;
};

inline std::byte* row_of(const AttentionOperand& operand, Place place, int64_t row, int64_t item) {
  return static_cast<std::byte*>(operand.data) +
         (place.batch * operand.batch_stride + place.head * operand.head_stride + row * operand.row_stride) * item;
}

// Rows of floats.
struct Rows {
  const float* data;
  int64_t stride;
};

// `count` rows of an operand as floats: in place, or widened into `buffer`.
inline Rows float_rows(const Attention& call, InstructionSet set, const AttentionOperand& operand, Place place,
                       int64_t first, int64_t count, float* buffer) {
  const int64_t item = element_bytes(call.element);
  const std::byte* const from = row_of(operand, place, first, item);
  if (call.element == Element::kFloat32) return {reinterpret_cast<const float*>(from), operand.row_stride};
  for (int64_t row = 0; row < count; ++row) {
    widen(call.element, from + row * operand.row_stride * item, call.head_size, buffer + row * call.head_size, set);
  }
  return {buffer, call.head_size};
}

// What is multiplied with what: `rows` rows of queries, or of weights for the first `columns` keys
// of the block.
struct TileOfRows {
  int64_t rows;
  int64_t columns;
  int64_t block;  // keys that are packed
  float* scores;
  int64_t score_stride;
};

// By vectors.
class VectorProducts {
 public:
  // Queries of a tile: a multiple of the rows that any kernel takes at once. Their scores should
  // stay in the first-level cache.
  static constexpr int64_t kRows = 24;
  // Packed, with their values, they should stay in the second-level cache.
  static constexpr int64_t kKeys = 512;
  // Queries for which a block is packed.
  static constexpr int64_t kGroupRows = 240;
  // What rows of scores and results are padded to.
  static constexpr int64_t kColumns = kAttentionMaxWidth;

  VectorProducts(const Attention& call, InstructionSet set)
      : call_(call), set_(set), kernels_(attention_kernels(set)), wide_(call.element != Element::kFloat32) {}

  int64_t key_floats(int64_t keys) const { return call_.head_size * padded(keys); }
  int64_t value_floats(int64_t keys) const { return keys * padded(call_.head_size); }
  int64_t scratch_floats(int64_t keys) const { return wide_ ? std::max(keys, kRows) * call_.head_size : 0; }

  void pack_keys(Place place, int64_t heads, int64_t key, int64_t keys, float* to, int64_t to_stride, float* scratch) {
    pack(call_.k, place, heads, key, keys, to, to_stride, scratch, kernels_.pack_transposed);
  }
  void pack_values(Place place, int64_t heads, int64_t key, int64_t keys, float* to, int64_t to_stride,
                   float* scratch) {
    pack(call_.v, place, heads, key, keys, to, to_stride, scratch, kernels_.pack);
  }
  void score(const TileOfRows& tile, Place place, int64_t query, const float* keys, float* scratch) {
    const Rows q = float_rows(call_, set_, call_.q, place, query, tile.rows, scratch);
    kernels_.multiply({.a = q.data,
                       .a_stride = q.stride,
                       .a_transposed = false,
                       .b = keys,
                       .b_rows = call_.head_size,
                       .b_columns = tile.block,
                       .c = tile.scores,
                       .c_stride = tile.score_stride,
                       .rows = tile.rows,
                       .steps = call_.head_size,
                       .columns = tile.columns,
                       .add = false});
  }
  void gather(const TileOfRows& tile, const float* values, float* out, int64_t out_stride, bool add, float*) {
    kernels_.multiply({.a = tile.scores,
                       .a_stride = tile.score_stride,
                       .a_transposed = false,
                       .b = values,
                       .b_rows = tile.block,
                       .b_columns = call_.head_size,
                       .c = out,
                       .c_stride = out_stride,
                       .rows = tile.rows,
                       .steps = tile.columns,
                       .columns = call_.head_size,
                       .add = add});
  }
  bool exact() const { return true; }

 private:
  template <typename Kernel>
  void pack(const AttentionOperand& operand, Place place, int64_t heads, int64_t key, int64_t keys, float* to,
            int64_t to_stride, float* scratch, Kernel kernel) {
    // Floats of all heads at once; others are widened head by head.
    const int64_t together = wide_ ? 1 : heads;
    for (int64_t head = 0; head < heads; head += together) {
      const Rows from = float_rows(call_, set_, operand, {place.batch, place.head + head}, key, keys, scratch);
      kernel({.from = from.data,
              .stride = from.stride,
              .rows = keys,
              .columns = call_.head_size,
              .to = to + head * to_stride,
              .heads = together,
              .head_stride = operand.head_stride,
              .to_head_stride = to_stride});
    }
  }

  const Attention& call_;
  const InstructionSet set_;
  const AttentionKernels& kernels_;
  const bool wide_;
};

// By vectors of pairs of bfloat16. Queries are multiplied as they lie, and keys are packed as if
// their pairs were floats. Weights are rounded.
class PairProducts {
 public:
  static constexpr int64_t kRows = VectorProducts::kRows;
  static constexpr int64_t kKeys = VectorProducts::kKeys;
  static constexpr int64_t kGroupRows = VectorProducts::kGroupRows;
  static constexpr int64_t kColumns = VectorProducts::kColumns;

  // Whether pairs are where floats can be.
  static bool fits(const Attention& call) {
    const auto even = [](const AttentionOperand& it) {
      return it.row_stride % 2 == 0 && it.head_stride % 2 == 0 && reinterpret_cast<uintptr_t>(it.data) % 4 == 0 &&
             it.batch_stride % 2 == 0;
    };
    return prefers_bfloat16_instructions() && call.element == Element::kBfloat16 && call.head_size % 2 == 0 &&
           even(call.q) && even(call.k);
  }

  PairProducts(const Attention& call, InstructionSet set)
      : call_(call), kernels_(attention_kernels(set)), pairs_(attention_pairs()) {}

  int64_t key_floats(int64_t keys) const { return call_.head_size / 2 * padded(keys); }
  int64_t value_floats(int64_t keys) const { return divide_up(keys, 2) * padded(call_.head_size); }
  int64_t scratch_floats(int64_t keys) const { return kRows * weight_stride(keys); }

  void pack_keys(Place place, int64_t heads, int64_t key, int64_t keys, float* to, int64_t to_stride, float*) {
    const Rows from = pairs_of(call_.k, place, key);
    kernels_.pack_transposed({.from = from.data,
                              .stride = from.stride,
                              .rows = keys,
                              .columns = call_.head_size / 2,
                              .to = to,
                              .heads = heads,
                              .head_stride = call_.k.head_stride / 2,
                              .to_head_stride = to_stride});
  }
  void pack_values(Place place, int64_t heads, int64_t key, int64_t keys, float* to, int64_t to_stride, float*) {
    for (int64_t head = 0; head < heads; ++head) {
      const std::byte* const from = row_of(call_.v, {place.batch, place.head + head}, key, kItem);
      pairs_.pack({.from = reinterpret_cast<const uint16_t*>(from),
                   .stride = call_.v.row_stride,
                   .rows = keys,
                   .columns = call_.head_size,
                   .to = to + head * to_stride});
    }
  }
  void score(const TileOfRows& tile, Place place, int64_t query, const float* keys, float*) {
    const Rows q = pairs_of(call_.q, place, query);
    pairs_.multiply({.a = q.data,
                     .a_stride = q.stride,
                     .a_transposed = false,
                     .b = keys,
                     .b_rows = call_.head_size / 2,
                     .b_columns = tile.block,
                     .c = tile.scores,
                     .c_stride = tile.score_stride,
                     .rows = tile.rows,
                     .steps = call_.head_size / 2,
                     .columns = tile.columns,
                     .add = false});
  }
  void gather(const TileOfRows& tile, const float* values, float* out, int64_t out_stride, bool add, float* scratch) {
    const int64_t stride = weight_stride(tile.block);
    pairs_.narrow(tile.scores, tile.score_stride, tile.rows, tile.columns, scratch, stride);
    pairs_.multiply({.a = scratch,
                     .a_stride = stride,
                     .a_transposed = false,
                     .b = values,
                     .b_rows = divide_up(tile.block, 2),
                     .b_columns = call_.head_size,
                     .c = out,
                     .c_stride = out_stride,
                     .rows = tile.rows,
                     .steps = divide_up(tile.columns, 2),
                     .columns = call_.head_size,
                     .add = add});
  }
  bool exact() const { return true; }

 private:
  static constexpr int64_t kItem = 2;

  static int64_t weight_stride(int64_t keys) { return padded(keys) / 2; }
  static Rows pairs_of(const AttentionOperand& operand, Place place, int64_t row) {
    return {reinterpret_cast<const float*>(row_of(operand, place, row, kItem)), operand.row_stride / 2};
  }

  const Attention& call_;
  const AttentionKernels& kernels_;
  const AttentionPairKernels& pairs_;
};

// On the processor's tile unit.
class TileProducts {
 public:
  static constexpr int64_t kRows = 2 * kTileRows;
  static constexpr int64_t kKeys = 256;
  static constexpr int64_t kGroupRows = 256;
  static constexpr int64_t kColumns = kPanel;

  TileProducts(const Attention& call, InstructionSet)
      : call_(call),
        item_(element_bytes(call.element)),
        kernels_(tile_kernels(call.element)),
        unit_(kTileRows),
        head_panels_(divide_up(call.head_size, kPanel)) {}

  int64_t key_floats(int64_t keys) const { return divide_up(keys, kPanel) * bytes(call_.head_size) / 4; }
  int64_t value_floats(int64_t keys) const { return head_panels_ * bytes(keys) / 4; }
  int64_t scratch_floats(int64_t keys) const {
    return 2 * float_tile_bytes(call_.element, std::max(keys, call_.head_size)) / 4;
  }

  void pack_keys(Place place, int64_t heads, int64_t key, int64_t keys, float* to, int64_t to_stride, float*) {
    read_ahead(call_.k, place, heads, key, keys);
    for (int64_t head = 0; head < heads; ++head) {
      auto* panel = reinterpret_cast<std::byte*>(to + head * to_stride);
      for (int64_t first = 0; first < keys; first += kPanel, panel += bytes(call_.head_size)) {
        keys_.join(kernels_.pack_panel(row_of(call_.k, {place.batch, place.head + head}, key + first, item_),
                                       call_.k.row_stride, false, std::min(kPanel, keys - first), call_.head_size,
                                       panel));
      }
    }
  }
  void pack_values(Place place, int64_t heads, int64_t key, int64_t keys, float* to, int64_t to_stride, float*) {
    read_ahead(call_.v, place, heads, key, keys);
    for (int64_t head = 0; head < heads; ++head) {
      auto* panel = reinterpret_cast<std::byte*>(to + head * to_stride);
      const std::byte* const from = row_of(call_.v, {place.batch, place.head + head}, key, item_);
      for (int64_t first = 0; first < call_.head_size; first += kPanel, panel += bytes(keys)) {
        values_.join(kernels_.pack_panel(from + first * item_, call_.v.row_stride, true,
                                         std::min(kPanel, call_.head_size - first), keys, panel));
      }
    }
  }
  void score(const TileOfRows& tile, Place place, int64_t query, const float* keys, float* scratch) {
    auto* const x = reinterpret_cast<std::byte*>(scratch);
    const int64_t stride = row_tile_bytes(call_.element, call_.head_size);
    queries_.join(kernels_.pack_rows(row_of(call_.q, place, query, item_), call_.q.row_stride, tile.rows,
                                     call_.head_size, x, stride, kTileBytes));
    const auto* panel = reinterpret_cast<const std::byte*>(keys);
    for (int64_t first = 0; first < tile.columns; first += kPanel, panel += bytes(call_.head_size)) {
      kernels_.multiply({.x = x,
                         .x_stride = stride,
                         .rows = tile.rows,
                         .w = panel,
                         .depth = tiles_of(call_.head_size),
                         .to = tile.scores + first,
                         .sum_stride = tile.score_stride});
    }
  }
  void gather(const TileOfRows& tile, const float* values, float* out, int64_t out_stride, bool add, float* scratch) {
    auto* const x = reinterpret_cast<std::byte*>(scratch);
    const int64_t stride = float_tile_bytes(call_.element, tile.columns);
    kernels_.pack_floats(tile.scores, tile.score_stride, tile.rows, tile.columns, x, stride);
    const auto* panel = reinterpret_cast<const std::byte*>(values);
    for (int64_t first = 0; first < call_.head_size; first += kPanel, panel += bytes(tile.block)) {
      kernels_.multiply_floats({.x = x,
                                .x_stride = stride,
                                .rows = tile.rows,
                                .w = panel,
                                .depth = tiles_of(tile.columns),
                                .from = add ? out + first : nullptr,
                                .to = out + first,
                                .sum_stride = out_stride});
    }
  }
  // False where operands had values that planes cannot have: what was computed since is of no use.
  // Weights are between 0 and 1, and of two planes for bfloat16, of which the second may have the
  // other sign: infinite values would become no numbers.
  bool exact() const {
    constexpr uint32_t kOne = std::bit_cast<uint32_t>(1.0f);
    constexpr uint32_t kInfinite = std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
    if (call_.element != Element::kFloat32) return values_.largest < kInfinite;
    return within_reach(queries_, keys_) && within_reach({kOne, kOne}, values_);
  }

 private:
  int64_t bytes(int64_t k) const { return panel_bytes(call_.element, k); }

  // Interleaved heads are packed one by one, but lie in one piece of memory: reading it in order
  // first brings it into the second-level cache at the speed of memory, which the processor does
  // not reach where it sees short pieces.
  void read_ahead(const AttentionOperand& operand, Place place, int64_t heads, int64_t first, int64_t count) const {
    if (heads == 1 || operand.head_stride != call_.head_size) return;
    const int64_t bytes = heads * call_.head_size * item_;
    for (int64_t row = 0; row < count; ++row) {
      const std::byte* const from = row_of(operand, place, first + row, item_);
      for (int64_t at = 0; at < bytes; at += 64) static_cast<void>(static_cast<const volatile std::byte*>(from)[at]);
    }
  }

  const Attention& call_;
  const int64_t item_;
  const TileKernels& kernels_;
  const TileUnit unit_;
  const int64_t head_panels_;
  Magnitudes queries_, keys_, values_;
};

}  // namespace hetero::backend::attention
