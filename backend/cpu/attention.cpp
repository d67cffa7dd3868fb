// Forward, for a group of queries of the heads that share one head of keys:
// 1. A block of keys is packed transposed, the block of values as it is; both as floats.
// 2. For each tile of queries: scores = q k^T; weights = exp(scores - the largest so far); out = out * correction + weights v.
// 3. After the last block: out / sums of the weights.
//
// Backward, for a head of keys, by blocks of keys and tiles of queries of the heads that share it: the weights are computed again, gradients of the
// weights are grad_out v^T, and those of the scores follow from both. grad_q sums over the blocks; grad_k and grad_v over the tiles.

#include "backend/cpu/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu/attention_kernel.h"
#include "backend/cpu/matvec_kernel.h"
#include "backend/cpu/vector_portable.h"
#include "backend/parallel.h"

namespace hetero::backend {
namespace {

// ---- the portable instruction set: loops that the compiler makes vectors of -----------------------------------------------

constexpr AttentionKernels kPortableKernels = make_attention_kernels<Vector>();

// ---- blocks ---------------------------------------------------------------------------------------------------------------

// Queries of a tile: a multiple of the rows that any kernel takes at once. Their scores should stay in the first-level cache.
constexpr int64_t kTileRows = 24;
constexpr int64_t kBackwardTileRows = 48;
// Keys of a block: packed, with the values, they should stay in the second-level cache.
constexpr int64_t kBlockKeys = 512;
constexpr int64_t kBackwardBlockKeys = 256;
// Queries for which a block is packed.
constexpr int64_t kGroupRows = 240;
// Rows of all heads that share a head of keys for which nothing is packed.
constexpr int64_t kFewRows = 4 * kMaxMatvecRows;
// Keys and values packed at a time, where a thread takes several heads: what half of a second-level cache holds.
constexpr int64_t kPackedFloats = 128 << 10;
// What is worth another thread, in multiplications.
constexpr int64_t kWorkPerThread = 256 << 10;

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
int64_t padded(int64_t columns) { return round_up(columns, kAttentionMaxWidth); }

// One piece of the calling thread's scratch memory for each size, in floats.
template <size_t count>
std::array<float*, count> scratch(const std::array<int64_t, count>& sizes) {
  static thread_local std::vector<float> buffer;
  constexpr int64_t kLine = 16;
  int64_t total = kLine;
  for (const int64_t size : sizes) total += round_up(size, kLine);
  if (static_cast<int64_t>(buffer.size()) < total) buffer.resize(static_cast<size_t>(total));
  auto* next = reinterpret_cast<float*>(
      static_cast<uintptr_t>(round_up(static_cast<int64_t>(reinterpret_cast<uintptr_t>(buffer.data())), kLine * 4)));
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
  // `count` rows of an operand as floats: in place, or widened into `buffer`.
  Rows rows(const AttentionOperand& operand, Place place, int64_t first, int64_t count, float* buffer) const;
  // The mask for some queries and keys, put into `scores`.
  void set_mask(AttentionScores& scores, Place place, int64_t query, int64_t key, float* buffer) const;
  // Where head `i` of those that share the head of keys `place` is.
  Place sharer(Place place, int64_t i) const { return {place.batch, place.head * sharing_ + i}; }
  bool few_queries() const;
  void forward_nothing() const;
  // Some rows of those of a head of keys: all queries of the first head that shares it, then those of the next.
  void forward_few(Place place, int64_t first, int64_t count) const;
  // Some queries of all heads that share `heads` heads of keys from place.head on.
  void forward_group(Place place, int64_t heads, int64_t first, int64_t count) const;
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

Rows Engine::rows(const AttentionOperand& operand, Place place, int64_t first, int64_t count, float* buffer) const {
  const std::byte* const from = row_of(operand, place, first, item_);
  if (!wide()) return {reinterpret_cast<const float*>(from), operand.row_stride};
  for (int64_t row = 0; row < count; ++row) {
    widen(call_.element, from + row * operand.row_stride * item_, call_.head_size, buffer + row * call_.head_size,
          set_);
  }
  return {buffer, call_.head_size};
}

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

void Engine::forward_group(Place place, int64_t heads, int64_t first, int64_t count) const {
  const int64_t size = call_.head_size, out_stride = padded(size);
  const int64_t end = call_.causal ? std::min(call_.keys, first + count) : call_.keys;
  const int64_t block = std::min(kBlockKeys, end), score_stride = padded(block);
  // With a single block a tile is finished at once, and the next one may take its memory.
  const bool single = end <= block;
  const int64_t sharers = heads * sharing_;
  const int64_t kept = single ? std::min(kTileRows, count) : sharers * count;
  const bool wide_mask = call_.mask.data != nullptr && call_.mask.element != Element::kFloat32;
  const int64_t packed = size * score_stride, packed_values = block * out_stride;
  const auto [keys, values, scores, out, largest, sums, wide_rows, wide_q, mask] =
      scratch<9>({heads * packed, heads * packed_values, kTileRows * score_stride, kept * out_stride, kept, kept,
                  wide() ? block * size : 0, wide() ? kTileRows * size : 0, wide_mask ? kTileRows * block : 0});
  for (int64_t key = 0; key < end; key += block) {
    const int64_t columns = std::min(block, end - key);
    const auto pack = [&](const AttentionOperand& operand, float* to, int64_t to_stride, auto kernel) {
      // Floats of all heads at once; others are widened head by head.
      const int64_t together = wide() ? 1 : heads;
      for (int64_t head = 0; head < heads; head += together) {
        const Rows from = rows(operand, {place.batch, place.head + head}, key, columns, wide_rows);
        kernel({.from = from.data,
                .stride = from.stride,
                .rows = columns,
                .columns = size,
                .to = to + head * to_stride,
                .heads = together,
                .head_stride = operand.head_stride,
                .to_head_stride = to_stride});
      }
    };
    pack(call_.k, keys, packed, kernels_->pack_transposed);
    pack(call_.v, values, packed_values, kernels_->pack);
    for (int64_t row = 0; row < count; row += kTileRows) {
      const int64_t tile = std::min(kTileRows, count - row);
      const int64_t limit = call_.causal ? std::min(columns, first + row + tile - key) : columns;
      if (limit <= 0) continue;
      for (int64_t i = 0; i < sharers; ++i) {
        const Place at = sharer(place, i);
        const int64_t head = i / sharing_;
        const int64_t kept_row = single ? 0 : i * count + row;
        float* const tile_out = out + kept_row * out_stride;
        if (key == 0) {
          std::fill_n(largest + kept_row, tile, -std::numeric_limits<float>::infinity());
          std::fill_n(sums + kept_row, tile, 0.0f);
        }
        const Rows q = rows(call_.q, at, first + row, tile, wide_q);
        kernels_->multiply({.a = q.data,
                            .a_stride = q.stride,
                            .a_transposed = false,
                            .b = keys + head * packed,
                            .b_rows = size,
                            .b_columns = columns,
                            .c = scores,
                            .c_stride = score_stride,
                            .rows = tile,
                            .steps = size,
                            .columns = limit,
                            .add = false});
        AttentionScores part{.scores = scores,
                             .stride = score_stride,
                             .rows = tile,
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
        kernels_->multiply({.a = scores,
                            .a_stride = score_stride,
                            .a_transposed = false,
                            .b = values + head * packed_values,
                            .b_rows = columns,
                            .b_columns = size,
                            .c = tile_out,
                            .c_stride = out_stride,
                            .rows = tile,
                            .steps = limit,
                            .columns = size,
                            .add = key > 0});
        if (single) finish(at, first + row, tile, tile_out, out_stride, largest, sums);
      }
    }
  }
  if (single) return;
  for (int64_t i = 0; i < sharers; ++i) {
    const int64_t row = i * count;
    finish(sharer(place, i), first, count, out + row * out_stride, out_stride, largest + row, sums + row);
  }
}

// Packing pays off with many rows, but not for single queries: the rows of a tile are of one head.
bool Engine::few_queries() const {
  if (call_.queries > (wide() ? 2 : 1) * kMaxMatvecRows) return false;
  return call_.queries == 1 || sharing_ * call_.queries <= kFewRows;
}

void Engine::forward() const {
  if (call_.batches * call_.heads == 0 || call_.queries == 0) return;
  if (call_.keys == 0) return forward_nothing();
  const int64_t places = call_.batches * call_.kv_heads, threads = thread_count();
  const int64_t work = 2 * call_.keys * std::max<int64_t>(1, call_.head_size);
  if (few_queries()) {
    const int64_t rows = sharing_ * call_.queries, parts = (rows + kMaxMatvecRows - 1) / kMaxMatvecRows;
    const int64_t part = (rows + parts - 1) / parts;
    parallel_for(0, places * parts, std::max<int64_t>(1, kWorkPerThread / (part * work)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t place = i / parts, first = i % parts * part;
                     forward_few({place / call_.kv_heads, place % call_.kv_heads}, first, std::min(part, rows - first));
                   }
                 });
    return;
  }
  // There should be some groups for each thread; beyond that, many queries pack less often, and many heads read memory in its order.
  constexpr int64_t kGroupsPerThread = 4;
  const int64_t wanted = (kGroupsPerThread * threads + places - 1) / places;
  const int64_t most_rows =
      std::max(kTileRows, std::min(kGroupRows, 2 * kGroupRows / sharing_ / kTileRows * kTileRows));
  const int64_t rows = std::min(most_rows, round_up((call_.queries + wanted - 1) / wanted, kTileRows));
  const int64_t parts = (call_.queries + rows - 1) / rows;
  const bool interleaved = call_.q.head_stride < call_.q.row_stride;
  const int64_t packed = 2 * std::min(kBlockKeys, call_.keys) * padded(call_.head_size);
  const int64_t most = std::min(
      {call_.kv_heads, kPackedFloats / std::max<int64_t>(1, packed), places * parts / (kGroupsPerThread * threads)});
  const int64_t heads = interleaved ? std::max<int64_t>(1, most) : 1;
  const int64_t head_groups = (call_.kv_heads + heads - 1) / heads;
  const int64_t group_work = std::min(rows, call_.queries) * heads * sharing_ * work;
  const int64_t grain = std::max<int64_t>(1, kWorkPerThread / group_work);
  parallel_for(0, call_.batches * head_groups * parts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % parts * rows, head = i / parts % head_groups * heads;
      forward_group({i / parts / head_groups, head}, std::min(heads, call_.kv_heads - head), first,
                    std::min(rows, call_.queries - first));
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
