// Forward, for a group of queries of the heads that share one head of keys:
// 1. A block of keys is packed transposed, the block of values as it is: as floats for vectors, or for the processor's tile unit (tile_kernel.h).
// 2. For each tile of queries: scores = q k^T; weights = exp(scores - the largest so far); out = out * correction + weights v.
// 3. After the last block: out / sums of the weights.
//
// Backward, for a head of keys, by blocks of keys and tiles of queries of the heads that share it: the weights are computed again, gradients of the
// weights are grad_out v^T, and those of the scores follow from both. grad_q sums over the blocks; grad_k and grad_v over the tiles.

#include "backend/cpu/kernels/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu/kernels/attention_kernel.h"
#include "backend/cpu/kernels/matvec_kernel.h"
#include "backend/cpu/vector/scratch.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "backend/cpu/kernels/tile_kernel.h"
#include "backend/cpu/vector/vector_portable.h"
#include "backend/base/parallel.h"
#include "backend/base/rounding.h"

namespace hetero::backend {
#if !defined(__x86_64__)
const AttentionPairKernels& attention_pairs() { std::abort(); }
#endif

namespace {

// ---- the portable instruction set: loops that the compiler makes vectors of -----------------------------------------------

constexpr AttentionKernels kPortableKernels = make_attention_kernels<Vector>();

// ---- blocks ---------------------------------------------------------------------------------------------------------------

constexpr int64_t kBackwardTileRows = 48;
// Keys of a block of a backward pass; of a forward pass in VectorProducts.
constexpr int64_t kBackwardBlockKeys = 256;
// Rows of all heads that share a head of keys for which nothing is packed.
constexpr int64_t kFewRows = 4 * kMaxMatvecRows;
// Keys and values packed at a time, where a thread takes several heads: what half of a second-level cache holds.
constexpr int64_t kPackedFloats = 128 << 10;
// What is worth another thread, in multiplications.
constexpr int64_t kWorkPerThread = 256 << 10;

int64_t padded(int64_t columns) { return round_up(columns, kAttentionMaxWidth); }

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

std::byte* row_of(const AttentionOperand& operand, Place place, int64_t row, int64_t item) {
  return static_cast<std::byte*>(operand.data) +
         (place.batch * operand.batch_stride + place.head * operand.head_stride + row * operand.row_stride) * item;
}

// Rows of floats.
struct Rows {
  const float* data;
  int64_t stride;
};

// `count` rows of an operand as floats: in place, or widened into `buffer`.
Rows float_rows(const Attention& call, InstructionSet set, const AttentionOperand& operand, Place place, int64_t first,
                int64_t count, float* buffer) {
  const int64_t item = element_bytes(call.element);
  const std::byte* const from = row_of(operand, place, first, item);
  if (call.element == Element::kFloat32) return {reinterpret_cast<const float*>(from), operand.row_stride};
  for (int64_t row = 0; row < count; ++row) {
    widen(call.element, from + row * operand.row_stride * item, call.head_size, buffer + row * call.head_size, set);
  }
  return {buffer, call.head_size};
}

// ---- the products of a forward pass ---------------------------------------------------------------------------------------
//
// Of a block of keys: scores of a tile of queries, and what their weights gather from the values. Memory is given by the caller, in floats.

// What is multiplied with what: `rows` rows of queries, or of weights for the first `columns` keys of the block.
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
  // Queries of a tile: a multiple of the rows that any kernel takes at once. Their scores should stay in the first-level cache.
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

// By vectors of pairs of bfloat16. Queries are multiplied as they lie, and keys are packed as if their pairs were floats. Weights are rounded.
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
    return has_bfloat16_instructions() && call.element == Element::kBfloat16 && call.head_size % 2 == 0 &&
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
                                     call_.head_size, x, stride));
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
  // False where operands had values that planes cannot have: what was computed since is of no use. Weights are between 0 and 1, and of two planes for
  // bfloat16, of which the second may have the other sign: infinite values would become no numbers.
  bool exact() const {
    constexpr uint32_t kOne = std::bit_cast<uint32_t>(1.0f);
    constexpr uint32_t kInfinite = std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
    if (call_.element != Element::kFloat32) return values_.largest < kInfinite;
    return within_reach(queries_, keys_) && within_reach({kOne, kOne}, values_);
  }

 private:
  int64_t bytes(int64_t k) const { return panel_bytes(call_.element, k); }

  // Interleaved heads are packed one by one, but lie in one piece of memory: reading it in order first brings it into the second-level cache at the
  // speed of memory, which the processor does not reach where it sees short pieces.
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

// Runs calls of one element type by one instruction set.
class Engine {
 public:
  Engine(const Attention& call, InstructionSet set)
      : call_(call),
        set_(set),
        item_(element_bytes(call.element)),
        sharing_(call.heads / std::max<int64_t>(1, call.kv_heads)),
        kernels_(&attention_kernels(set)) {}

  void forward() const;
  void backward(const AttentionBackward& backward) const;

 private:
  bool wide() const { return call_.element != Element::kFloat32; }
  Rows rows(const AttentionOperand& operand, Place place, int64_t first, int64_t count, float* buffer) const {
    return float_rows(call_, set_, operand, place, first, count, buffer);
  }
  // The mask for some queries and keys, put into `scores`.
  void set_mask(AttentionScores& scores, Place place, int64_t query, int64_t key, float* buffer) const;
  // Where head `i` of those that share the head of keys `place` is.
  Place sharer(Place place, int64_t i) const { return {place.batch, place.head * sharing_ + i}; }
  bool few_queries() const;
  void forward_nothing() const;
  // Some rows of those of a head of keys: all queries of the first head that shares it, then those of the next.
  void forward_few(Place place, int64_t first, int64_t count) const;
  template <typename Products>
  void forward_many() const;
  // Some queries of all heads that share `heads` heads of keys from place.head on. False where the products could not be had: nothing is written that counts.
  template <typename Products>
  bool forward_group(Place place, int64_t heads, int64_t first, int64_t count) const;
  void backward_head(const AttentionBackward& backward, Place place) const;
  // Divides by the sums and writes the results of some queries.
  void finish(Place place, int64_t first, int64_t count, float* out, int64_t stride, const float* largest,
              float* sums) const;
  float& logsumexp(Place place, int64_t row) const {
    return *reinterpret_cast<float*>(row_of(call_.logsumexp, place, row, sizeof(float)));
  }
  // Above every column where nothing is cut off.
  int64_t diagonal(int64_t query, int64_t key) const { return call_.causal ? query - key : call_.keys; }

  const Attention& call_;
  const InstructionSet set_;
  const int64_t item_;
  const int64_t sharing_;  // heads of queries for each head of keys
  const AttentionKernels* const kernels_;
};

void Engine::set_mask(AttentionScores& scores, Place place, int64_t query, int64_t key, float* buffer) const {
  const AttentionMask& mask = call_.mask;
  if (mask.data == nullptr) return;
  const int64_t item = element_bytes(mask.element);
  const auto* const from =
      static_cast<const std::byte*>(mask.data) + (place.batch * mask.batch_stride + place.head * mask.head_stride +
                                                  query * mask.row_stride + key * mask.column_stride) *
                                                     item;
  scores.mask_by_row = mask.column_stride == 0;
  if (mask.element == Element::kFloat32) {
    scores.mask = reinterpret_cast<const float*>(from);
    scores.mask_stride = mask.row_stride;
    return;
  }
  const int64_t count = scores.mask_by_row ? 1 : scores.columns;
  const int64_t rows = mask.row_stride == 0 ? 1 : scores.rows;
  for (int64_t row = 0; row < rows; ++row) {
    widen(mask.element, from + row * mask.row_stride * item, count, buffer + row * count, set_);
  }
  scores.mask = buffer;
  scores.mask_stride = mask.row_stride == 0 ? 0 : count;
}

void Engine::finish(Place place, int64_t first, int64_t count, float* out, int64_t stride, const float* largest,
                    float* sums) const {
  for (int64_t row = 0; row < count; ++row) {
    const float sum = sums[row] == 0 ? 1 : sums[row];
    const float top = largest[row] == -std::numeric_limits<float>::infinity() ? 0 : largest[row];
    logsumexp(place, first + row) = top + std::log(sum);
    sums[row] = 1 / sum;
  }
  std::byte* const to = row_of(call_.out, place, first, item_);
  if (!wide()) {
    kernels_->scale_rows(out, stride, count, call_.head_size, sums, 1, reinterpret_cast<float*>(to),
                         call_.out.row_stride);
    return;
  }
  kernels_->scale_rows(out, stride, count, call_.head_size, sums, 1, out, stride);
  for (int64_t row = 0; row < count; ++row) {
    narrow(call_.element, out + row * stride, call_.head_size, to + row * call_.out.row_stride * item_, set_);
  }
}

// Without keys.
void Engine::forward_nothing() const {
  const std::vector<float> zeros(static_cast<size_t>(call_.head_size));
  for (int64_t i = 0; i < call_.batches * call_.heads; ++i) {
    for (int64_t row = 0; row < call_.queries; ++row) {
      const Place place{i / call_.heads, i % call_.heads};
      narrow(call_.element, zeros.data(), call_.head_size, row_of(call_.out, place, row, item_), set_);
      logsumexp(place, row) = 0;
    }
  }
}

// Up to eight rows at once, and all keys.
void Engine::forward_few(Place place, int64_t first, int64_t count) const {
  const int64_t keys = call_.keys, size = call_.head_size;
  const int64_t q_stride = round_up(size, kMatvecMaxBlock), score_stride = round_up(keys, kMatvecMaxBlock);
  const auto [q, scores, out, largest, sums, mask] =
      scratch<6>({count * q_stride, count * score_stride, count * q_stride, count, count, count * score_stride});
  const auto& products = matvec_table(set_)[static_cast<int>(call_.element)];
  // Calls use(head, query, row, n) for the rows of each head.
  const auto for_each_head = [&](auto&& use) {
    for (int64_t row = 0; row < count;) {
      const int64_t query = (first + row) % call_.queries;
      const int64_t n = std::min(count - row, call_.queries - query);
      use(sharer(place, (first + row) / call_.queries), query, row, n);
      row += n;
    }
  };
  for_each_head([&](Place head, int64_t query, int64_t row, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      products[0].prepare(row_of(call_.q, head, query + i, item_), size, q + (row + i) * q_stride);
    }
  });
  products[0].parts[count - 1]({.x = q,
                                .x_stride = q_stride,
                                .k = size,
                                .w = row_of(call_.k, place, 0, item_),
                                .w_stride = call_.k.row_stride,
                                .count = keys,
                                .out = scores,
                                .out_stride = score_stride});
  std::fill_n(largest, count, -std::numeric_limits<float>::infinity());
  for_each_head([&](Place head, int64_t query, int64_t row, int64_t n) {
    AttentionScores part{.scores = scores + row * score_stride,
                         .stride = score_stride,
                         .rows = n,
                         .columns = keys,
                         .diagonal = diagonal(query, 0),
                         .scale = call_.scale};
    set_mask(part, head, query, 0, mask);
    kernels_->soften(part, {.largest = largest + row, .sums = sums + row, .first = true});
  });
  products[1].parts[count - 1]({.x = scores,
                                .x_stride = score_stride,
                                .k = keys,
                                .w = row_of(call_.v, place, 0, item_),
                                .w_stride = call_.v.row_stride,
                                .count = size,
                                .out = out,
                                .out_stride = q_stride});
  for_each_head([&](Place head, int64_t query, int64_t row, int64_t n) {
    finish(head, query, n, out + row * q_stride, q_stride, largest + row, sums + row);
  });
}

template <typename Products>
bool Engine::forward_group(Place place, int64_t heads, int64_t first, int64_t count) const {
  Products products(call_, set_);
  constexpr int64_t kRows = Products::kRows;
  const int64_t size = call_.head_size, out_stride = round_up(size, Products::kColumns);
  const int64_t end = call_.causal ? std::min(call_.keys, first + count) : call_.keys;
  const int64_t block = std::min(Products::kKeys, end), score_stride = round_up(block, Products::kColumns);
  // With a single block a tile is finished at once, and the next one may take its memory.
  const bool single = end <= block;
  const int64_t sharers = heads * sharing_;
  const int64_t kept = single ? kRows : sharers * round_up(count, kRows);
  const bool wide_mask = call_.mask.data != nullptr && call_.mask.element != Element::kFloat32;
  const int64_t packed = products.key_floats(block), packed_values = products.value_floats(block);
  const auto [keys, values, scores, out, largest, sums, memory, mask] =
      scratch<8>({heads * packed, heads * packed_values, kRows * score_stride, kept * out_stride, kept, kept,
                  products.scratch_floats(block), wide_mask ? kRows * block : 0});
  for (int64_t key = 0; key < end; key += block) {
    const int64_t columns = std::min(block, end - key);
    products.pack_keys(place, heads, key, columns, keys, packed, memory);
    products.pack_values(place, heads, key, columns, values, packed_values, memory);
    for (int64_t row = 0; row < count; row += kRows) {
      const int64_t rows = std::min(kRows, count - row);
      const int64_t limit = call_.causal ? std::min(columns, first + row + rows - key) : columns;
      if (limit <= 0) continue;
      const TileOfRows tile{rows, limit, columns, scores, score_stride};
      for (int64_t i = 0; i < sharers; ++i) {
        const Place at = sharer(place, i);
        const int64_t head = i / sharing_;
        const int64_t kept_row = single ? 0 : i * round_up(count, kRows) + row;
        float* const tile_out = out + kept_row * out_stride;
        if (key == 0) {
          std::fill_n(largest + kept_row, rows, -std::numeric_limits<float>::infinity());
          std::fill_n(sums + kept_row, rows, 0.0f);
        }
        products.score(tile, at, first + row, keys + head * packed, memory);
        AttentionScores part{.scores = scores,
                             .stride = score_stride,
                             .rows = rows,
                             .columns = limit,
                             .diagonal = diagonal(first + row, key),
                             .scale = call_.scale};
        set_mask(part, at, first + row, key, mask);
        kernels_->soften(part, {.largest = largest + kept_row,
                                .sums = sums + kept_row,
                                .first = key == 0,
                                .out = tile_out,
                                .out_stride = out_stride,
                                .out_columns = size});
        products.gather(tile, values + head * packed_values, tile_out, out_stride, key > 0, memory);
        if (single) finish(at, first + row, rows, tile_out, out_stride, largest, sums);
      }
    }
  }
  if (!products.exact()) return false;
  if (single) return true;
  for (int64_t i = 0; i < sharers; ++i) {
    const int64_t row = i * round_up(count, kRows);
    finish(sharer(place, i), first, count, out + row * out_stride, out_stride, largest + row, sums + row);
  }
  return true;
}

// Packing pays off with many rows, but not for single queries: the rows of a tile are of one head.
bool Engine::few_queries() const {
  if (call_.queries > (wide() ? 2 : 1) * kMaxMatvecRows) return false;
  return call_.queries == 1 || sharing_ * call_.queries <= kFewRows;
}

void Engine::forward() const {
  if (call_.batches * call_.heads == 0 || call_.queries == 0) return;
  if (call_.keys == 0) return forward_nothing();
  const int64_t places = call_.batches * call_.kv_heads;
  const int64_t work = 2 * call_.keys * std::max<int64_t>(1, call_.head_size);
  if (few_queries()) {
    const int64_t rows = sharing_ * call_.queries, parts = divide_up(rows, kMaxMatvecRows);
    const int64_t part = divide_up(rows, parts);
    parallel_for(0, places * parts, std::max<int64_t>(1, kWorkPerThread / (part * work)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t place = i / parts, first = i % parts * part;
                     forward_few({place / call_.kv_heads, place % call_.kv_heads}, first, std::min(part, rows - first));
                   }
                 });
    return;
  }
  if (call_.tiles && set_ == InstructionSet::kAvx512 && has_tiles_for(call_.element)) {
    forward_many<TileProducts>();
  } else if (set_ == InstructionSet::kAvx512 && PairProducts::fits(call_)) {
    forward_many<PairProducts>();
  } else {
    forward_many<VectorProducts>();
  }
}

template <typename Products>
void Engine::forward_many() const {
  constexpr int64_t kRows = Products::kRows, kGroupRows = Products::kGroupRows;
  const int64_t places = call_.batches * call_.kv_heads, threads = thread_count();
  const int64_t work = 2 * call_.keys * std::max<int64_t>(1, call_.head_size);
  // There should be some groups for each thread; beyond that, many queries pack less often, and many heads read memory in its order.
  constexpr int64_t kGroupsPerThread = 4;
  const int64_t wanted = divide_up(kGroupsPerThread * threads, places);
  const int64_t most_rows = std::max(kRows, std::min(kGroupRows, 2 * kGroupRows / sharing_ / kRows * kRows));
  const int64_t rows = std::min(most_rows, round_up(divide_up(call_.queries, wanted), kRows));
  const int64_t parts = divide_up(call_.queries, rows);
  const bool interleaved = call_.q.head_stride < call_.q.row_stride;
  const int64_t packed = 2 * std::min(Products::kKeys, call_.keys) * padded(call_.head_size);
  const int64_t most = std::min(
      {call_.kv_heads, kPackedFloats / std::max<int64_t>(1, packed), places * parts / (kGroupsPerThread * threads)});
  const int64_t heads = interleaved ? std::max<int64_t>(1, most) : 1;
  const int64_t head_groups = divide_up(call_.kv_heads, heads);
  const int64_t group_work = std::min(rows, call_.queries) * heads * sharing_ * work;
  const int64_t grain = std::max<int64_t>(1, kWorkPerThread / group_work);
  parallel_for(0, call_.batches * head_groups * parts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % parts * rows, head = i / parts % head_groups * heads;
      const Place place{i / parts / head_groups, head};
      const int64_t some = std::min(heads, call_.kv_heads - head), count = std::min(rows, call_.queries - first);
      if (!forward_group<Products>(place, some, first, count)) forward_group<VectorProducts>(place, some, first, count);
    }
  });
}

void Engine::backward_head(const AttentionBackward& backward, Place place) const {
  const int64_t size = call_.head_size, stride = padded(size), queries = call_.queries;
  const int64_t block = std::min(kBackwardBlockKeys, call_.keys), score_stride = padded(block);
  const int64_t most_rows = std::min(kBackwardTileRows, queries);
  const bool wide_mask = call_.mask.data != nullptr && call_.mask.element != Element::kFloat32;
  const int64_t wide_row = wide() ? size : 0;
  const auto [keys, keys_across, values_across, grad_k, grad_v, grad_q, scores, gradients, tile_q, tile_out, logsumexps,
              dots, mask, wide_keys, wide_q, wide_out, wide_grad_out] =
      scratch<17>({block * stride, size * score_stride, size * score_stride, block * stride, block * stride,
                   sharing_ * queries * stride, most_rows * score_stride, most_rows * score_stride, most_rows * stride,
                   most_rows * stride, most_rows, most_rows, wide_mask ? most_rows * block : 0, block * wide_row,
                   most_rows * wide_row, most_rows * wide_row, most_rows * wide_row});
  // The rows times a number, as the call's elements.
  const auto store = [&](const AttentionOperand& operand, Place at, int64_t first, int64_t count, float* from,
                         float factor) {
    std::byte* const to = row_of(operand, at, first, item_);
    kernels_->scale_rows(from, stride, count, size, &factor, 0, wide() ? from : reinterpret_cast<float*>(to),
                         wide() ? stride : operand.row_stride);
    if (!wide()) return;
    for (int64_t row = 0; row < count; ++row) {
      narrow(call_.element, from + row * stride, size, to + row * operand.row_stride * item_, set_);
    }
  };
  if (call_.keys == 0) std::fill_n(grad_q, sharing_ * queries * stride, 0.0f);
  for (int64_t key = 0; key < call_.keys; key += block) {
    const int64_t columns = std::min(block, call_.keys - key);
    const auto packing = [&](Rows from, int64_t count, float* to) {
      return AttentionPacking{.from = from.data, .stride = from.stride, .rows = count, .columns = size, .to = to};
    };
    const Rows k = rows(call_.k, place, key, columns, wide_keys);
    kernels_->pack(packing(k, columns, keys));
    kernels_->pack_transposed(packing(k, columns, keys_across));
    const Rows v = rows(call_.v, place, key, columns, wide_keys);
    kernels_->pack_transposed(packing(v, columns, values_across));
    std::fill_n(grad_k, columns * stride, 0.0f);
    std::fill_n(grad_v, columns * stride, 0.0f);
    for (int64_t i = 0; i < sharing_; ++i) {
      const Place at = sharer(place, i);
      float* const head_grad_q = grad_q + i * queries * stride;
      for (int64_t row = 0; row < queries; row += kBackwardTileRows) {
        const int64_t tile = std::min(kBackwardTileRows, queries - row);
        const int64_t limit = call_.causal ? std::min(columns, row + tile - key) : columns;
        if (limit <= 0) continue;
        const Rows q = rows(call_.q, at, row, tile, wide_q);
        const Rows out = rows(call_.out, at, row, tile, wide_out);
        const Rows grad_out = rows(backward.grad_out, at, row, tile, wide_grad_out);
        kernels_->pack(packing(q, tile, tile_q));
        kernels_->pack(packing(grad_out, tile, tile_out));
        kernels_->dot_rows(grad_out.data, grad_out.stride, out.data, out.stride, tile, size, dots);
        for (int64_t r = 0; r < tile; ++r) logsumexps[r] = logsumexp(at, row + r);
        const auto across = [&](Rows a, const float* b, float* c) {
          kernels_->multiply({.a = a.data,
                              .a_stride = a.stride,
                              .a_transposed = false,
                              .b = b,
                              .b_rows = size,
                              .b_columns = columns,
                              .c = c,
                              .c_stride = score_stride,
                              .rows = tile,
                              .steps = size,
                              .columns = limit,
                              .add = false});
        };
        across(q, keys_across, scores);
        across(grad_out, values_across, gradients);
        AttentionScores part{.scores = scores,
                             .stride = score_stride,
                             .rows = tile,
                             .columns = limit,
                             .diagonal = diagonal(row, key),
                             .scale = call_.scale};
        set_mask(part, at, row, key, mask);
        kernels_->differentiate(part, {.gradients = gradients, .logsumexp = logsumexps, .dots = dots});
        const auto add_to_keys = [&](const float* a, const float* b, float* c) {
          kernels_->multiply({.a = a,
                              .a_stride = score_stride,
                              .a_transposed = true,
                              .b = b,
                              .b_rows = tile,
                              .b_columns = size,
                              .c = c,
                              .c_stride = stride,
                              .rows = limit,
                              .steps = tile,
                              .columns = size,
                              .add = true});
        };
        add_to_keys(scores, tile_out, grad_v);
        add_to_keys(gradients, tile_q, grad_k);
        kernels_->multiply({.a = gradients,
                            .a_stride = score_stride,
                            .a_transposed = false,
                            .b = keys,
                            .b_rows = columns,
                            .b_columns = size,
                            .c = head_grad_q + row * stride,
                            .c_stride = stride,
                            .rows = tile,
                            .steps = limit,
                            .columns = size,
                            .add = key > 0});
      }
    }
    store(backward.grad_k, place, key, columns, grad_k, call_.scale);
    store(backward.grad_v, place, key, columns, grad_v, 1);
  }
  for (int64_t i = 0; i < sharing_; ++i) {
    store(backward.grad_q, sharer(place, i), 0, queries, grad_q + i * queries * stride, call_.scale);
  }
}

void Engine::backward(const AttentionBackward& backward) const {
  const int64_t work = std::max<int64_t>(1, 5 * sharing_ * call_.queries * call_.keys * call_.head_size);
  parallel_for(0, call_.batches * call_.kv_heads, std::max<int64_t>(1, kWorkPerThread / work),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   backward_head(backward, {i / call_.kv_heads, i % call_.kv_heads});
                 }
               });
}

}  // namespace

const AttentionKernels& attention_kernels(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return attention_avx512();
  if (set == InstructionSet::kAvx2) return attention_avx2();
#endif
  (void)set;
  return kPortableKernels;
}

void attention_forward(const Attention& call) { attention_forward(call, instruction_set()); }
void attention_forward(const Attention& call, InstructionSet set) { Engine(call, set).forward(); }

void attention_backward(const AttentionBackward& backward) { attention_backward(backward, instruction_set()); }
void attention_backward(const AttentionBackward& backward, InstructionSet set) {
  Engine(backward.call, set).backward(backward);
}

}  // namespace hetero::backend
