// 1. Check lengths, starts and the table, so that the loops may trust them.
// 2. Divide: each sequence into tiles of rows, these into parts of the keys that the tile reads,
//    and parts into heads of keys. If there are many tiles, a part has all keys. If there are
//    enough parts, one has all heads, because pages are read fastest from begin to end.
// 3. Threads get parts of about equal work; paged_attention_kernel.h computes one. A tile with one
//    part is stored at once.
// 4. The others are merged in the order of their keys.

#include "backend/cpu/paged/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/paged/paged_attention_kernel.h"
#include "backend/cpu/vector/elements_portable.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

constexpr PagedTableHolder kPortableTable =
    make_paged_table<Vector, Float32, Bfloat16, Bfloat16, Float16, Int8, Float8>();

const PagedTable& paged_table(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return paged_avx512();
  if (set == InstructionSet::kAvx2) return paged_avx2();
#endif
  (void)set;
  return kPortableTable.kernels;
}

bool multiplies_pairs(const PagedAttention& call, InstructionSet set) {
  return set == InstructionSet::kAvx512 && has_bfloat16_instructions() && call.element == Element::kBfloat16 &&
         call.cache == CacheElement::kBfloat16;
}

PagedKernel pair_kernel() {
#if defined(__x86_64__)
  return paged_pairs();
#else
  return nullptr;
#endif
}

constexpr int64_t kPartKeys = 128;
// So many tiles keep any processor busy without dividing keys.
constexpr int64_t kManyTiles = 64;
constexpr int64_t kEnoughParts = 16;
// Elements of keys and values that are worth another thread.
constexpr int64_t kElementsPerThread = 32 << 10;

Status usage(std::string message) { return {ErrorClass::kUsage, std::move(message)}; }

// ---- the queries of a sequence, and what they read

struct Sequence {
  int64_t first = 0;  // of its queries
  int64_t queries = 0;
  int64_t length = 0;
};

Sequence sequence_of(const PagedAttention& call, int64_t index) {
  Sequence sequence;
  if (call.starts == nullptr) {
    sequence.queries = call.tokens / call.sequences;
    sequence.first = index * sequence.queries;
  } else {
    sequence.first = call.starts[index];
    sequence.queries = call.starts[index + 1] - sequence.first;
  }
  sequence.length = call.lengths[index];
  return sequence;
}

// Keys [0, sinks) and [begin, end) are read by some of the queries first to last, which count from
// the sequence's first one. A query before the sequence begins reads none.
struct Span {
  int64_t sinks = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

Span span_of(const PagedAttention& call, const Sequence& sequence, int64_t first, int64_t last) {
  const int64_t before = sequence.length - sequence.queries;
  Span span;
  span.end = std::clamp<int64_t>(before + last + 1, 0, sequence.length);
  if (call.window > 0) span.begin = std::clamp<int64_t>(before + first + 1 - call.window, 0, span.end);
  span.sinks = std::min(call.sinks, span.begin);
  return span;
}

Status check_table(const PagedAttention& call, int64_t index, int64_t begin, int64_t end) {
  const int32_t* const row = call.table + index * call.table_stride;
  for (int64_t block = begin / call.page_tokens; block * call.page_tokens < end; ++block) {
    if (row[block] >= 0 && row[block] < call.pages) continue;
    return usage("paged_attention: the block table has page " + std::to_string(row[block]) + " for block " +
                 std::to_string(block) + " of sequence " + std::to_string(index) + ", and there are " +
                 std::to_string(call.pages) + " pages");
  }
  return {};
}

Status check_sequence(const PagedAttention& call, int64_t index) {
  const Sequence sequence = sequence_of(call, index);
  if (sequence.first < 0 || sequence.queries < 0 || sequence.first + sequence.queries > call.tokens) {
    return usage("paged_attention: query_starts must rise from 0 to the " + std::to_string(call.tokens) + " queries");
  }
  if (sequence.length < 0 || sequence.length > call.blocks * call.page_tokens) {
    return usage("paged_attention: sequence " + std::to_string(index) + " has " + std::to_string(sequence.length) +
                 " keys, and its block table has room for " + std::to_string(call.blocks * call.page_tokens));
  }
  if (sequence.queries == 0) return {};
  const Span span = span_of(call, sequence, 0, sequence.queries - 1);
  if (Status status = check_table(call, index, 0, span.sinks); !status.ok()) return status;
  return check_table(call, index, span.begin, span.end);
}

Status check(const PagedAttention& call) {
  if (call.starts != nullptr && (call.starts[0] != 0 || call.starts[call.sequences] != call.tokens)) {
    return usage("paged_attention: query_starts must rise from 0 to the " + std::to_string(call.tokens) + " queries");
  }
  for (int64_t i = 0; i < call.sequences; ++i) {
    if (Status status = check_sequence(call, i); !status.ok()) return status;
  }
  return {};
}

// ---- parts

struct Part {
  int64_t sequence;
  int64_t kv_head;  // the first
  int64_t kv_heads;
  int64_t row;   // of a head's rows: the heads of the first query, then those of the second
  int64_t rows;  // of each head
  int64_t begin;
  int64_t end;
  int64_t work;    // of all parts before it
  int64_t result;  // of a tile with several parts: where its results are, in rows; else -1
};

// A tile with several parts, one after another in the list.
struct Tile {
  int64_t part;
  int64_t parts;
};

struct Division {
  std::vector<Part> parts;
  std::vector<Tile> tiles;
  int64_t work = 0;
  int64_t result_rows = 0;
};

class Divider {
 public:
  Divider(const PagedAttention& call, Division& division)
      : call_(call), division_(division), group_(call.heads / call.kv_heads) {}

  void divide() {
    int64_t tiles = 0;
    for (int64_t i = 0; i < call_.sequences; ++i) {
      tiles += divide_up(sequence_of(call_, i).queries * group_, kPagedMostRows) * call_.kv_heads;
    }
    part_keys_ = tiles < kManyTiles ? kPartKeys : std::numeric_limits<int64_t>::max();
    int64_t parts = 0;
    for_each_tile([&](int64_t, int64_t, int64_t, const Span& span) {
      parts += divide_up(span.sinks, kPartKeys) + divide_up(span.end - span.begin, kPartKeys);
    });
    const int64_t heads = std::clamp<int64_t>(parts * call_.kv_heads / kEnoughParts, 1, call_.kv_heads);
    for_each_tile([&](int64_t sequence, int64_t row, int64_t rows, const Span& span) {
      // The sums of a part stay in the first-level cache.
      const int64_t step = std::min(heads, std::max<int64_t>(1, kPagedMostRows / rows));
      for (int64_t head = 0; head < call_.kv_heads; head += step) {
        add_tile({sequence, head, std::min(step, call_.kv_heads - head), row, rows, 0, 0, 0, -1}, span);
      }
    });
  }

 private:
  template <typename Use>
  void for_each_tile(Use use) const {
    for (int64_t i = 0; i < call_.sequences; ++i) {
      const Sequence sequence = sequence_of(call_, i);
      for (int64_t row = 0; row < sequence.queries * group_; row += kPagedMostRows) {
        const int64_t rows = std::min(kPagedMostRows, sequence.queries * group_ - row);
        use(i, row, rows, span_of(call_, sequence, row / group_, (row + rows - 1) / group_));
      }
    }
  }

  void add_tile(const Part& part, const Span& span) {
    const auto first = static_cast<int64_t>(division_.parts.size());
    add_parts(part, 0, span.sinks);
    add_parts(part, span.begin, span.end);
    // Nothing is read: zeros are written.
    if (std::ssize(division_.parts) == first) add_part(part, 0, 0);
    const int64_t parts = std::ssize(division_.parts) - first;
    if (parts == 1) return;
    division_.tiles.push_back({first, parts});
    for (int64_t i = first; i < first + parts; ++i) {
      division_.parts[static_cast<size_t>(i)].result = division_.result_rows;
      division_.result_rows += part.rows * part.kv_heads;
    }
  }

  void add_parts(const Part& part, int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t stop = end - begin > part_keys_ ? begin / kPartKeys * kPartKeys + kPartKeys : end;
      add_part(part, begin, stop);
      begin = stop;
    }
  }

  void add_part(Part part, int64_t begin, int64_t end) {
    part.begin = begin;
    part.end = end;
    part.work = division_.work;
    // Rows beyond a few cost as much as what is read.
    division_.work += (end - begin + 8) * part.kv_heads * std::max<int64_t>(4, part.rows);
    division_.parts.push_back(part);
  }

  const PagedAttention& call_;
  Division& division_;
  int64_t group_;
  int64_t part_keys_ = 0;
};

// ---- computing a part

PagedSide side_of(const PagedRows& rows, CacheElement element, int64_t head) {
  const int64_t item = cache_element_bytes(element);
  PagedSide side{static_cast<const unsigned char*>(rows.data) + head * rows.head_stride * item,
                 rows.page_stride * item,
                 rows.token_stride * item,
                 nullptr,
                 0,
                 0};
  if (!has_scales(element)) return side;
  side.scales = rows.scales + head * rows.scale_head_stride;
  side.scale_page_stride = rows.scale_page_stride;
  side.scale_token_stride = rows.scale_token_stride;
  return side;
}

// Of rows of queries.
struct Results {
  int64_t stride;  // of a row of sums
  float* largest;
  float* weights;
  float* sums;

  Results from(int64_t row) const { return {stride, largest + row, weights + row, sums + row * stride}; }
};

class Worker {
 public:
  Worker(const PagedAttention& call, InstructionSet set, const Results& results)
      : call_(call),
        set_(set),
        pairs_(multiplies_pairs(call, set)),
        kernel_(pairs_ ? pair_kernel() : paged_table(set)[static_cast<size_t>(call.cache)]),
        results_(results),
        group_(call.heads / call.kv_heads) {}

  void run(const Part& part) const {
    const int64_t stride = results_.stride, rows = part.rows * part.kv_heads;
    static thread_local Scratch memory;
    auto* const query = memory.get<float>(rows * (2 * stride + 2));
    Results state{stride, nullptr, nullptr, query + rows * stride};
    state.largest = state.sums + rows * stride;
    state.weights = state.largest + rows;
    if (part.result >= 0) state = results_.from(part.result);
    std::fill_n(state.sums, rows * stride, 0.0f);
    std::fill_n(state.largest, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.weights, rows, 0.0f);
    if (part.begin < part.end) compute(part, query, state);
    if (part.result >= 0) return;
    for (int64_t r = 0; r < rows; ++r) store(part, r, state.weights[r], state.sums + r * stride);
  }

  // Merges the parts of a tile.
  void merge(const Part* parts, int64_t count) const {
    const int64_t stride = results_.stride;
    for (int64_t r = 0; r < parts[0].rows * parts[0].kv_heads; ++r) {
      float largest = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < count; ++i) largest = std::max(largest, results_.largest[parts[i].result + r]);
      float* const sums = results_.sums + (parts[0].result + r) * stride;
      float weight = 0;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = parts[i].result + r;
        // A part whose keys this row does not read has nothing to add.
        const float here = results_.largest[at];
        const bool none = here == -std::numeric_limits<float>::infinity() && results_.weights[at] == 0;
        const float factor = none ? 0.0f : std::exp(here - largest);
        weight += factor * results_.weights[at];
        const float* const from = results_.sums + at * stride;
        for (int64_t k = 0; k < stride; ++k) sums[k] = (i == 0 ? 0.0f : sums[k]) + factor * from[k];
      }
      store(parts[0], r, weight, sums);
    }
  }

 private:
  // Of a row of all heads.
  int64_t token_of(const Part& part, int64_t row) const {
    return sequence_of(call_, part.sequence).first + (part.row + row % part.rows) / group_;
  }
  int64_t head_of(const Part& part, int64_t row) const {
    return (part.kv_head + row / part.rows) * group_ + (part.row + row % part.rows) % group_;
  }

  void compute(const Part& part, float* query, const Results& state) const {
    const Sequence sequence = sequence_of(call_, part.sequence);
    int64_t first[kPagedMostRows], last[kPagedMostRows];
    for (int64_t r = 0; r < part.rows; ++r) {
      const int64_t q = (part.row + r) / group_;
      const Span span = span_of(call_, sequence, q, q);
      first[r] = span.begin;
      last[r] = span.end;
    }
    for (int64_t r = 0; r < part.rows * part.kv_heads; ++r) {
      const int64_t place = token_of(part, r) * call_.query_token_stride + head_of(part, r) * call_.query_head_stride;
      copy_query(element_at(call_.query, place, call_.element), query + r * state.stride, state.stride);
    }
    PagedPart heads[kPagedMostRows];
    for (int64_t head = 0; head < part.kv_heads; ++head) {
      const Results rows = state.from(head * part.rows);
      heads[head] = {.rows = part.rows,
                     .query = query + head * part.rows * state.stride,
                     .stride = state.stride,
                     .head_size = call_.head_size,
                     .scale = call_.scale,
                     .first = first,
                     .last = last,
                     .sinks = call_.window > 0 ? call_.sinks : 0,
                     .keys = side_of(call_.keys, call_.cache, part.kv_head + head),
                     .values = side_of(call_.values, call_.cache, part.kv_head + head),
                     .table = call_.table + part.sequence * call_.table_stride,
                     .page_tokens = call_.page_tokens,
                     .begin = part.begin,
                     .end = part.end,
                     .largest = rows.largest,
                     .weights = rows.weights,
                     .sums = rows.sums};
    }
    kernel_(heads, part.kv_heads);
  }

  // Padded with zeros.
  void copy_query(const void* from, float* to, int64_t stride) const {
    if (pairs_) {
      std::memset(to, 0, static_cast<size_t>(stride) * sizeof(float));
      std::memcpy(to, from, static_cast<size_t>(call_.head_size) * sizeof(uint16_t));
      return;
    }
    widen(call_.element, from, call_.head_size, to, set_);
    std::fill(to + call_.head_size, to + stride, 0.0f);
  }

  void store(const Part& part, int64_t row, float weight, float* sums) const {
    const float factor = weight == 0 ? 0.0f : 1 / weight;
    for (int64_t i = 0; i < call_.head_size; ++i) sums[i] *= factor;
    const int64_t place = (token_of(part, row) * call_.heads + head_of(part, row)) * call_.head_size;
    narrow(call_.element, sums, call_.head_size,
           static_cast<std::byte*>(call_.out) + place * element_bytes(call_.element), set_);
  }

  const PagedAttention& call_;
  InstructionSet set_;
  bool pairs_;
  PagedKernel kernel_;
  Results results_;
  int64_t group_;
};

// Kept from call to call, so that steady calls take no heap memory.
Division& empty_division() {
  static thread_local Division division;
  division.parts.clear();
  division.tiles.clear();
  division.work = division.result_rows = 0;
  return division;
}

}  // namespace

Status paged_attention(const PagedAttention& call) { return paged_attention(call, instruction_set()); }

Status paged_attention(const PagedAttention& call, InstructionSet set) {
  if (call.sequences == 0 || call.heads == 0 || call.head_size == 0) return {};
  if (Status status = check(call); !status.ok()) return status;
  Division& division = empty_division();
  Divider(call, division).divide();

  Results results{round_up(call.head_size, kPagedBlock), nullptr, nullptr, nullptr};
  static thread_local Scratch memory;
  results.sums = memory.get<float>(division.result_rows * (results.stride + 2));
  results.largest = results.sums + division.result_rows * results.stride;
  results.weights = results.largest + division.result_rows;

  const Worker worker(call, set, results);
  const std::vector<Part>& parts = division.parts;
  const int64_t grain = std::max<int64_t>(1, 4 * kElementsPerThread / (2 * call.head_size));
  parallel_for(0, division.work, grain, [&](int64_t begin, int64_t end) {
    auto part = std::ranges::lower_bound(parts, begin, {}, &Part::work);
    for (; part != parts.end() && part->work < end; ++part) worker.run(*part);
  });
  const auto tiles = static_cast<int64_t>(division.tiles.size());
  parallel_for(0, tiles, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Tile& tile = division.tiles[static_cast<size_t>(i)];
      worker.merge(parts.data() + tile.part, tile.parts);
    }
  });
  return {};
}

// ---- writing pages

namespace {

Status check_slots(const PagedAppend& call) {
  const int64_t slots = call.pages * call.page_tokens;
  for (int64_t i = 0; i < call.tokens; ++i) {
    if (call.slots[i] >= -1 && call.slots[i] < slots) continue;
    return usage("paged_append_: token " + std::to_string(i) + " has slot " + std::to_string(call.slots[i]) +
                 ", and there are " + std::to_string(slots) + " slots");
  }
  return {};
}

// The rows of one head, in the order of the tokens.
void append_head(const PagedAppend& call, const PagedRows& to, const void* from, int64_t token_stride) {
  static thread_local Scratch memory;
  const bool same = call.cache == cache_element(call.element);
  const int64_t item = cache_element_bytes(call.cache);
  for (int64_t i = 0; i < call.tokens; ++i) {
    const int64_t slot = call.slots[i];
    if (slot < 0) continue;
    const int64_t page = slot / call.page_tokens, place = slot % call.page_tokens;
    const std::byte* const row = element_at(from, i * token_stride, call.element);
    auto* const written = const_cast<std::byte*>(static_cast<const std::byte*>(to.data)) +
                          (page * to.page_stride + place * to.token_stride) * item;
    if (same) {
      std::memcpy(written, row, static_cast<size_t>(call.head_size * item));
      continue;
    }
    auto* const floats = memory.get<float>(call.head_size);
    widen(call.element, row, call.head_size, floats);
    float* const scale = has_scales(call.cache) ? const_cast<float*>(to.scales) + page * to.scale_page_stride +
                                                      place * to.scale_token_stride
                                                : nullptr;
    quantize_rows(call.cache, floats, 1, call.head_size, written, scale);
  }
}

PagedRows head_of(const PagedRows& rows, CacheElement element, int64_t head) {
  PagedRows moved = rows;
  moved.data = static_cast<const std::byte*>(rows.data) + head * rows.head_stride * cache_element_bytes(element);
  if (rows.scales != nullptr) moved.scales += head * rows.scale_head_stride;
  return moved;
}

}  // namespace

Status paged_append(const PagedAppend& call) {
  if (Status status = check_slots(call); !status.ok()) return status;
  const int64_t elements = std::max<int64_t>(1, call.tokens * call.head_size);
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / elements);
  parallel_for(0, 2 * call.kv_heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / 2;
      const bool keys = i % 2 == 0;
      const void* const base = keys ? call.key : call.value;
      const int64_t skip = head * (keys ? call.key_head_stride : call.value_head_stride);
      append_head(call, head_of(keys ? call.keys : call.values, call.cache, head), element_at(base, skip, call.element),
                  keys ? call.key_token_stride : call.value_token_stride);
    }
  });
  return {};
}

}  // namespace hetero::backend
