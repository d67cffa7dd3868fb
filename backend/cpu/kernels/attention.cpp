// Forward, for a group of queries of the heads that share one head of keys:
// 1. A block of keys is packed transposed, the block of values as it is: as floats for vectors, or
//    for the processor's tile unit (tile_kernel.h).
// 2. For each tile of queries: scores = q k^T; weights = exp(scores - the largest so far); out =
//    out * correction + weights v.
// 3. After the last block: out / sums of the weights.
//
// Backward, for a head of keys, by blocks of keys and tiles of queries of the heads that share it:
// the weights are computed again, gradients of the weights are grad_out v^T, and those of the
// scores follow from both. grad_q sums over the blocks; grad_k and grad_v over the tiles.

#include "backend/cpu/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/kernels/attention_kernel.h"
#include "backend/cpu/kernels/attention_products.h"
#include "backend/cpu/kernels/matvec_kernel.h"
#include "backend/cpu/vector/vector_portable.h"

namespace hetero::backend {
#if !defined(__x86_64__)
const AttentionPairKernels& attention_pairs() { std::abort(); }
#endif

namespace {

using namespace attention;

// ---- the portable instruction set: loops that the compiler makes vectors of ---------------------

constexpr AttentionKernels kPortableKernels = make_attention_kernels<Vector>();

constexpr int64_t kBackwardTileRows = 48;
// Keys of a block of a backward pass; of a forward pass in VectorProducts.
constexpr int64_t kBackwardBlockKeys = 256;
// Rows of all heads that share a head of keys for which nothing is packed.
constexpr int64_t kFewRows = 4 * kMaxMatvecRows;
// Keys and values packed at a time, where a thread takes several heads: what half of a second-level
// cache holds.
constexpr int64_t kPackedFloats = 128 << 10;
// What is worth another thread, in multiplications.
constexpr int64_t kWorkPerThread = 256 << 10;

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
  // Some rows of those of a head of keys: all queries of the first head that shares it, then those
  // of the next.
  void forward_few(Place place, int64_t first, int64_t count) const;
  template <typename Products>
  void forward_many() const;
  // Some queries of all heads that share `heads` heads of keys from place.head on. False where the
  // products could not be had: nothing is written that counts.
  template <typename Products>
  bool forward_group(Place place, int64_t heads, int64_t first, int64_t count) const;
  class BackwardHead;
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
  // There should be some groups for each thread; beyond that, many queries pack less often, and
  // many heads read memory in its order.
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

// The backward pass of one head of keys.
class Engine::BackwardHead {
 public:
  BackwardHead(const Engine& engine, const AttentionBackward& backward, Place place)
      : engine_(engine),
        call_(engine.call_),
        kernels_(*engine.kernels_),
        backward_(backward),
        place_(place),
        size_(call_.head_size),
        stride_(padded(size_)),
        block_(std::min(kBackwardBlockKeys, call_.keys)),
        score_stride_(padded(block_)) {
    const int64_t rows = std::min(kBackwardTileRows, call_.queries), queries = engine.sharing_ * call_.queries;
    const bool wide_mask = call_.mask.data != nullptr && call_.mask.element != Element::kFloat32;
    const int64_t wide_row = engine.wide() ? size_ : 0;
    const auto pieces = scratch<17>({block_ * stride_, size_ * score_stride_, size_ * score_stride_, block_ * stride_,
                                     block_ * stride_, queries * stride_, rows * score_stride_, rows * score_stride_,
                                     rows * stride_, rows * stride_, rows, rows, wide_mask ? rows * block_ : 0,
                                     block_ * wide_row, rows * wide_row, rows * wide_row, rows * wide_row});
    float** const all[] = {&keys_,   &keys_across_, &values_across_, &grad_k_,   &grad_v_,       &grad_q_,
                           &scores_, &gradients_,   &tile_q_,        &tile_out_, &logsumexps_,   &dots_,
                           &mask_,   &wide_keys_,   &wide_q_,        &wide_out_, &wide_grad_out_};
    for (size_t i = 0; i < pieces.size(); ++i) *all[i] = pieces[i];
  }

  void run() {
    const int64_t queries = call_.queries;
    if (call_.keys == 0) std::fill_n(grad_q_, engine_.sharing_ * queries * stride_, 0.0f);
    for (key_ = 0; key_ < call_.keys; key_ += block_) {
      columns_ = std::min(block_, call_.keys - key_);
      pack_keys();
      for (int64_t i = 0; i < engine_.sharing_; ++i) {
        for (int64_t row = 0; row < queries; row += kBackwardTileRows) add_tile(i, row);
      }
      store(backward_.grad_k, place_, key_, columns_, grad_k_, call_.scale);
      store(backward_.grad_v, place_, key_, columns_, grad_v_, 1);
    }
    for (int64_t i = 0; i < engine_.sharing_; ++i) {
      store(backward_.grad_q, engine_.sharer(place_, i), 0, queries, grad_q_ + i * queries * stride_, call_.scale);
    }
  }

 private:
  // A tile of queries: `rows` from `row` on, of which the first `limit` keys of the block are seen.
  struct Tile {
    Place place;
    int64_t row;
    int64_t rows;
    int64_t limit;
  };

  AttentionPacking packing(Rows from, int64_t count, float* to) const {
    return {.from = from.data, .stride = from.stride, .rows = count, .columns = size_, .to = to};
  }

  void pack_keys() {
    const Rows k = engine_.rows(call_.k, place_, key_, columns_, wide_keys_);
    kernels_.pack(packing(k, columns_, keys_));
    kernels_.pack_transposed(packing(k, columns_, keys_across_));
    const Rows v = engine_.rows(call_.v, place_, key_, columns_, wide_keys_);
    kernels_.pack_transposed(packing(v, columns_, values_across_));
    std::fill_n(grad_k_, columns_ * stride_, 0.0f);
    std::fill_n(grad_v_, columns_ * stride_, 0.0f);
  }

  // Of head `i` of those that share the keys.
  void add_tile(int64_t i, int64_t row) {
    const int64_t rows = std::min(kBackwardTileRows, call_.queries - row);
    const int64_t limit = call_.causal ? std::min(columns_, row + rows - key_) : columns_;
    if (limit <= 0) return;
    const Tile tile{engine_.sharer(place_, i), row, rows, limit};
    const Rows q = engine_.rows(call_.q, tile.place, row, rows, wide_q_);
    const Rows out = engine_.rows(call_.out, tile.place, row, rows, wide_out_);
    const Rows grad_out = engine_.rows(backward_.grad_out, tile.place, row, rows, wide_grad_out_);
    kernels_.pack(packing(q, rows, tile_q_));
    kernels_.pack(packing(grad_out, rows, tile_out_));
    kernels_.dot_rows(grad_out.data, grad_out.stride, out.data, out.stride, rows, size_, dots_);
    for (int64_t r = 0; r < rows; ++r) logsumexps_[r] = engine_.logsumexp(tile.place, row + r);
    multiply_across(tile, q, keys_across_, scores_);
    multiply_across(tile, grad_out, values_across_, gradients_);
    AttentionScores part{.scores = scores_,
                         .stride = score_stride_,
                         .rows = rows,
                         .columns = limit,
                         .diagonal = engine_.diagonal(row, key_),
                         .scale = call_.scale};
    engine_.set_mask(part, tile.place, row, key_, mask_);
    kernels_.differentiate(part, {.gradients = gradients_, .logsumexp = logsumexps_, .dots = dots_});
    add_to_keys(tile, scores_, tile_out_, grad_v_);
    add_to_keys(tile, gradients_, tile_q_, grad_k_);
    add_to_queries(tile, grad_q_ + (i * call_.queries + row) * stride_);
  }

  void multiply_across(const Tile& tile, Rows a, const float* b, float* c) const {
    kernels_.multiply({.a = a.data,
                       .a_stride = a.stride,
                       .a_transposed = false,
                       .b = b,
                       .b_rows = size_,
                       .b_columns = columns_,
                       .c = c,
                       .c_stride = score_stride_,
                       .rows = tile.rows,
                       .steps = size_,
                       .columns = tile.limit,
                       .add = false});
  }
  void add_to_keys(const Tile& tile, const float* a, const float* b, float* c) const {
    kernels_.multiply({.a = a,
                       .a_stride = score_stride_,
                       .a_transposed = true,
                       .b = b,
                       .b_rows = tile.rows,
                       .b_columns = size_,
                       .c = c,
                       .c_stride = stride_,
                       .rows = tile.limit,
                       .steps = tile.rows,
                       .columns = size_,
                       .add = true});
  }
  void add_to_queries(const Tile& tile, float* c) const {
    kernels_.multiply({.a = gradients_,
                       .a_stride = score_stride_,
                       .a_transposed = false,
                       .b = keys_,
                       .b_rows = columns_,
                       .b_columns = size_,
                       .c = c,
                       .c_stride = stride_,
                       .rows = tile.rows,
                       .steps = tile.limit,
                       .columns = size_,
                       .add = key_ > 0});
  }

  // The rows times a number, as the call's elements.
  void store(const AttentionOperand& operand, Place at, int64_t first, int64_t count, float* from, float factor) const {
    std::byte* const to = row_of(operand, at, first, engine_.item_);
    const bool wide = engine_.wide();
    kernels_.scale_rows(from, stride_, count, size_, &factor, 0, wide ? from : reinterpret_cast<float*>(to),
                        wide ? stride_ : operand.row_stride);
    if (!wide) return;
    for (int64_t row = 0; row < count; ++row) {
      narrow(call_.element, from + row * stride_, size_, to + row * operand.row_stride * engine_.item_, engine_.set_);
    }
  }

  const Engine& engine_;
  const Attention& call_;
  const AttentionKernels& kernels_;
  const AttentionBackward& backward_;
  const Place place_;
  const int64_t size_, stride_, block_, score_stride_;
  // The block of keys at hand.
  int64_t key_ = 0;
  int64_t columns_ = 0;
  // Scratch memory. "wide": of operands that are no floats, as floats.
  float *keys_, *keys_across_, *values_across_, *grad_k_, *grad_v_, *grad_q_;
  float *scores_, *gradients_, *tile_q_, *tile_out_, *logsumexps_, *dots_, *mask_;
  float *wide_keys_, *wide_q_, *wide_out_, *wide_grad_out_;
};

void Engine::backward(const AttentionBackward& backward) const {
  const int64_t work = std::max<int64_t>(1, 5 * sharing_ * call_.queries * call_.keys * call_.head_size);
  parallel_for(0, call_.batches * call_.kv_heads, std::max<int64_t>(1, kWorkPerThread / work),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   BackwardHead(*this, backward, {i / call_.kv_heads, i % call_.kv_heads}).run();
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
