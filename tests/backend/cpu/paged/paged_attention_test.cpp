#include "backend/cpu/paged/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/vector/half.h"
#include "tests/catch/catch.h"

namespace hetero::backend::testing {
namespace {

struct Shape {
  Element element = Element::kFloat32;
  CacheElement cache = CacheElement::kFloat32;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_size = 64;
  int64_t page_tokens = 16;
  int64_t window = 0;
  int64_t sinks = 0;
};

// A sequence of a batch: its queries are the last of its keys.
struct Lengths {
  int32_t keys;
  int32_t queries;
};

// A batch with random numbers in shuffled pages, and what attention over it is by definition.
class Batch {
 public:
  Batch(const Shape& shape, std::vector<Lengths> lengths, uint64_t seed = 1)
      : shape_(shape), lengths_(std::move(lengths)), random_(seed) {
    starts_.push_back(0);
    for (const Lengths& sequence : lengths_) {
      keys_.push_back(sequence.keys);
      starts_.push_back(starts_.back() + sequence.queries);
      blocks_ = std::max<int64_t>(blocks_, (sequence.keys + shape.page_tokens - 1) / shape.page_tokens);
    }
    pages_ = blocks_ * std::ssize(lengths_) + 3;
    fill_table();
    for (auto* side : {&key_, &value_}) make_side(*side);
    query_ = rounded(numbers(starts_.back() * shape.heads * shape.head_size), shape.element);
    query_bytes_ = stored(query_, shape.element);
    out_bytes_.resize(query_bytes_.size());
  }

  PagedAttention call() {
    PagedAttention call{.element = shape_.element,
                        .cache = shape_.cache,
                        .sequences = std::ssize(lengths_),
                        .tokens = starts_.back(),
                        .heads = shape_.heads,
                        .kv_heads = shape_.kv_heads,
                        .head_size = shape_.head_size,
                        .pages = pages_,
                        .page_tokens = shape_.page_tokens,
                        .query = query_bytes_.data(),
                        .query_token_stride = shape_.heads * shape_.head_size,
                        .query_head_stride = shape_.head_size,
                        .out = out_bytes_.data(),
                        .keys = rows_of(key_),
                        .values = rows_of(value_),
                        .table = table_.data(),
                        .table_stride = blocks_,
                        .blocks = blocks_,
                        .lengths = keys_.data(),
                        .starts = starts_.data(),
                        .scale = 1 / std::sqrt(static_cast<float>(shape_.head_size)),
                        .window = shape_.window,
                        .sinks = shape_.sinks};
    return call;
  }

  std::vector<float> out() const {
    std::vector<float> floats(static_cast<size_t>(starts_.back() * shape_.heads * shape_.head_size));
    dequantize_rows(cache_element(shape_.element), out_bytes_.data(), nullptr, 1, std::ssize(floats), floats.data());
    return floats;
  }

  // In double.
  std::vector<float> expected() const {
    std::vector<float> out;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int64_t q = 0; q < lengths_[s].queries; ++q) {
        for (int64_t head = 0; head < shape_.heads; ++head) attend(s, q, head, out);
      }
    }
    return out;
  }

  std::vector<int32_t>& table() { return table_; }
  std::vector<int32_t>& keys() { return keys_; }
  std::vector<int32_t>& starts() { return starts_; }
  int64_t pages() const { return pages_; }
  int64_t blocks() const { return blocks_; }
  std::vector<std::byte>& key_bytes() { return key_.bytes; }

 private:
  struct Side {
    std::vector<std::byte> bytes;
    std::vector<float> scales;
    std::vector<float> floats;  // what the bytes say
  };

  std::vector<float> numbers(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> made(static_cast<size_t>(count));
    for (float& number : made) number = normal(random_);
    return made;
  }
  static std::vector<std::byte> stored(const std::vector<float>& floats, Element element) {
    std::vector<std::byte> bytes(floats.size() * static_cast<size_t>(element_bytes(element)));
    narrow(element, floats.data(), std::ssize(floats), bytes.data());
    return bytes;
  }
  static std::vector<float> rounded(std::vector<float> floats, Element element) {
    const auto bytes = stored(floats, element);
    widen(element, bytes.data(), std::ssize(floats), floats.data());
    return floats;
  }

  void fill_table() {
    std::vector<int32_t> free(static_cast<size_t>(pages_));
    std::iota(free.begin(), free.end(), 0);
    std::ranges::shuffle(free, random_);
    table_.assign(lengths_.size() * static_cast<size_t>(blocks_), -1);
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int64_t b = 0; b * shape_.page_tokens < lengths_[s].keys; ++b) {
        table_[s * static_cast<size_t>(blocks_) + static_cast<size_t>(b)] = free.back();
        free.pop_back();
      }
    }
  }

  void make_side(Side& side) {
    const int64_t rows = pages_ * shape_.kv_heads * shape_.page_tokens;
    side.floats = numbers(rows * shape_.head_size);
    side.bytes.resize(side.floats.size() * static_cast<size_t>(cache_element_bytes(shape_.cache)));
    side.scales.resize(static_cast<size_t>(rows));
    quantize_rows(shape_.cache, side.floats.data(), rows, shape_.head_size, side.bytes.data(), side.scales.data());
    dequantize_rows(shape_.cache, side.bytes.data(), side.scales.data(), rows, shape_.head_size, side.floats.data());
  }

  PagedRows rows_of(const Side& side) const {
    const int64_t head = shape_.page_tokens * shape_.head_size;
    PagedRows rows{.data = side.bytes.data(),
                   .page_stride = shape_.kv_heads * head,
                   .head_stride = head,
                   .token_stride = shape_.head_size};
    if (!has_scales(shape_.cache)) return rows;
    rows.scales = side.scales.data();
    rows.scale_page_stride = shape_.kv_heads * shape_.page_tokens;
    rows.scale_head_stride = shape_.page_tokens;
    rows.scale_token_stride = 1;
    return rows;
  }

  const float* row(const Side& side, size_t sequence, int64_t head, int64_t key) const {
    const int64_t page =
        table_[sequence * static_cast<size_t>(blocks_) + static_cast<size_t>(key / shape_.page_tokens)];
    const int64_t at = (page * shape_.kv_heads + head) * shape_.page_tokens + key % shape_.page_tokens;
    return side.floats.data() + at * shape_.head_size;
  }

  void attend(size_t s, int64_t q, int64_t head, std::vector<float>& out) const {
    const int64_t position = keys_[s] - lengths_[s].queries + q;
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const float* const query = query_.data() + ((starts_[s] + q) * shape_.heads + head) * shape_.head_size;
    std::vector<int64_t> read;
    for (int64_t key = 0; key <= position; ++key) {
      if (shape_.window == 0 || key > position - shape_.window || key < shape_.sinks) read.push_back(key);
    }
    std::vector<double> scores;
    for (const int64_t key : read) {
      const float* const k = row(key_, s, kv_head, key);
      double score = 0;
      for (int64_t i = 0; i < shape_.head_size; ++i) score += static_cast<double>(query[i]) * k[i];
      scores.push_back(score / std::sqrt(static_cast<double>(shape_.head_size)));
    }
    const double largest = scores.empty() ? 0 : *std::ranges::max_element(scores);
    double weights = 0;
    std::vector<double> sums(static_cast<size_t>(shape_.head_size));
    for (size_t i = 0; i < read.size(); ++i) {
      const double weight = std::exp(scores[i] - largest);
      weights += weight;
      const float* const v = row(value_, s, kv_head, read[i]);
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += weight * v[k];
    }
    for (const double sum : sums) out.push_back(weights == 0 ? 0.0f : static_cast<float>(sum / weights));
  }

  Shape shape_;
  std::vector<Lengths> lengths_;
  std::mt19937_64 random_;
  int64_t blocks_ = 1;
  int64_t pages_ = 0;
  std::vector<int32_t> table_, keys_, starts_;
  Side key_, value_;
  std::vector<float> query_;
  std::vector<std::byte> query_bytes_, out_bytes_;
};

double tolerance(Element element) {
  return element == Element::kFloat32 ? 2e-5 : element == Element::kFloat16 ? 2e-3 : 1.5e-2;
}

double worst(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) return 1e9;
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return worst;
}

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
  if (instruction_set() >= InstructionSet::kAvx2) sets.push_back(InstructionSet::kAvx2);
  if (instruction_set() >= InstructionSet::kAvx512) sets.push_back(InstructionSet::kAvx512);
  return sets;
}

void check_batch(const Shape& shape, const std::vector<Lengths>& lengths) {
  Batch batch(shape, lengths);
  const auto expected = batch.expected();
  for (const InstructionSet set : sets()) {
    INFO(to_string(set) << ", " << to_string(shape.cache) << ", head size " << shape.head_size);
    REQUIRE(paged_attention(batch.call(), set).ok());
    CHECK(worst(batch.out(), expected) < tolerance(shape.element));
  }
}

// Threads that take ranges as PyTorch's pool does.
struct ThreePool {
  static void run(int64_t begin, int64_t end, int64_t, RangeFunction body) {
    const int64_t share = (end - begin + 2) / 3;
    std::vector<std::thread> threads;
    for (int64_t at = begin; at < end; at += share) {
      threads.emplace_back([=] { body(at, std::min(end, at + share)); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  static int64_t count() { return 3; }
  static constexpr ParallelPool kPool = {&run, &count};
};

}  // namespace

TEST_CASE("paged attention is attention by definition, for every element and instruction set") {
  const std::vector<Lengths> lengths = {{1, 1}, {16, 1}, {17, 1}, {0, 0}, {33, 5}, {40, 40}, {600, 2}};
  for (const Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
    check_batch({.element = element, .cache = cache_element(element)}, lengths);
    check_batch({.element = element, .cache = CacheElement::kInt8}, lengths);
    check_batch({.element = element, .cache = CacheElement::kFloat8}, lengths);
  }
  check_batch({.element = Element::kFloat32, .cache = CacheElement::kBfloat16}, lengths);
}

TEST_CASE("paged attention takes any number of heads, any head size and any page size") {
  for (const int64_t group : {1, 2, 3, 5, 6, 7, 8, 11}) {
    check_batch({.heads = 2 * group, .kv_heads = 2}, {{50, 1}, {20, 3}});
  }
  for (const int64_t head_size : {1, 7, 16, 31, 33, 80, 96, 128, 256}) {
    check_batch({.head_size = head_size}, {{50, 1}});
    check_batch({.cache = CacheElement::kInt8, .head_size = head_size}, {{50, 2}});
    check_batch({.element = Element::kBfloat16, .cache = CacheElement::kBfloat16, .head_size = head_size}, {{50, 2}});
  }
  for (const int64_t page_tokens : {1, 3, 8, 32, 48, 128}) {
    check_batch({.page_tokens = page_tokens}, {{1, 1}, {48, 1}, {49, 2}, {47, 47}, {700, 1}});
  }
}

TEST_CASE("a window and sinks bound what paged attention reads") {
  for (const int64_t window : {1, 5, 16, 100, 1000}) {
    for (const int64_t sinks : {0, 1, 16, 20, 2000}) {
      check_batch({.window = window, .sinks = sinks}, {{1, 1}, {40, 1}, {130, 30}, {1500, 1}, {90, 90}});
    }
  }
}

TEST_CASE("pages behind the window may be anywhere, and are not read") {
  Batch batch({.window = 20, .sinks = 4}, {{200, 1}});
  const auto expected = batch.expected();
  // Keys 180 to 199 and the first page.
  for (int64_t block = 1; block < 180 / 16; ++block) batch.table()[static_cast<size_t>(block)] = -1;
  REQUIRE(paged_attention(batch.call()).ok());
  CHECK(worst(batch.out(), expected) < tolerance(Element::kFloat32));
}

TEST_CASE("the bits of paged attention do not depend on the number of threads") {
  for (const CacheElement cache : {CacheElement::kBfloat16, CacheElement::kInt8}) {
    const Shape shape{.element = Element::kBfloat16, .cache = cache};
    Batch batch(shape, {{5000, 1}, {3, 3}, {800, 100}, {0, 0}, {2049, 1}});
    REQUIRE(paged_attention(batch.call()).ok());
    const auto alone = batch.out();
    set_parallel_pool(&ThreePool::kPool);
    const Status status = paged_attention(batch.call());
    set_parallel_pool(nullptr);
    REQUIRE(status.ok());
    CHECK(batch.out() == alone);
  }
}

TEST_CASE("queries before a sequence's first key give 0") {
  Batch batch({}, {{2, 4}, {0, 1}});
  REQUIRE(paged_attention(batch.call()).ok());
  const auto out = batch.out();
  CHECK(std::all_of(out.begin(), out.begin() + 2 * 4 * 64, [](float number) { return number == 0; }));
  CHECK(std::all_of(out.begin() + 4 * 4 * 64, out.end(), [](float number) { return number == 0; }));
  CHECK(worst(out, batch.expected()) < tolerance(Element::kFloat32));
}

TEST_CASE("paged attention refuses tables, lengths and starts that do not fit, in one sentence") {
  const auto refused = [](auto change) {
    Batch batch({}, {{40, 1}, {20, 2}});
    change(batch);
    const Status status = paged_attention(batch.call());
    REQUIRE_FALSE(status.ok());
    CHECK(status.error_class() == ErrorClass::kUsage);
    return status.message();
  };
  CHECK(refused([](Batch& b) { b.table()[1] = static_cast<int32_t>(b.pages()); }) ==
        "paged_attention: the block table has page 9 for block 1 of sequence 0, and there are 9 pages");
  CHECK(refused([](Batch& b) { b.table()[4] = -1; }) ==
        "paged_attention: the block table has page -1 for block 1 of sequence 1, and there are 9 pages");
  CHECK(refused([](Batch& b) { b.keys()[1] = 49; }) ==
        "paged_attention: sequence 1 has 49 keys, and its block table has room for 48");
  CHECK(refused([](Batch& b) { b.keys()[0] = -1; }).starts_with("paged_attention: sequence 0 has -1 keys"));
  CHECK(refused([](Batch& b) { b.starts()[1] = 4; }) ==
        "paged_attention: query_starts must rise from 0 to the 3 queries");
  CHECK(refused([](Batch& b) { b.starts()[1] = -1; }).starts_with("paged_attention: query_starts"));
  CHECK(refused([](Batch& b) { b.starts()[0] = 1; }).starts_with("paged_attention: query_starts"));
}

TEST_CASE("what is behind a sequence's end in its last page changes nothing") {
  Batch batch({}, {{17, 1}});
  REQUIRE(paged_attention(batch.call()).ok());
  const auto before = batch.out();
  const auto page = static_cast<size_t>(batch.table()[1]);
  constexpr size_t kPageBytes = 2 * 16 * 64 * sizeof(float);
  std::fill_n(batch.key_bytes().begin() + static_cast<std::ptrdiff_t>(page * kPageBytes + 64 * sizeof(float)),
              15 * 64 * sizeof(float), std::byte{0xff});  // NaN
  REQUIRE(paged_attention(batch.call()).ok());
  CHECK(batch.out() == before);
}

TEST_CASE("new keys and values land in their slots, converted") {
  constexpr int64_t kTokens = 5, kHeads = 2, kSize = 40, kPages = 3, kPageTokens = 4;
  std::vector<float> key(kTokens * kHeads * kSize), value(key.size());
  for (size_t i = 0; i < key.size(); ++i) key[i] = std::sin(static_cast<float>(i)), value[i] = -2 * key[i];
  for (int e = 0; e < kCacheElements; ++e) {
    const auto cache = static_cast<CacheElement>(e);
    const size_t rows = kPages * kHeads * kPageTokens;
    std::vector<std::byte> keys(rows * kSize * static_cast<size_t>(cache_element_bytes(cache)), std::byte{0x11});
    auto values = keys;
    std::vector<float> key_scales(rows, 7), value_scales(rows, 7);
    // The last token with slot 6 stays; one token has none.
    std::vector<int64_t> slots = {6, 11, -1, 0, 6};
    const auto side = [&](std::vector<std::byte>& bytes, std::vector<float>& scales) {
      return PagedRows{bytes.data(),  kHeads * kPageTokens * kSize, kPageTokens * kSize, kSize,
                       scales.data(), kHeads * kPageTokens,         kPageTokens,         1};
    };
    PagedAppend call{.element = Element::kFloat32,
                     .cache = cache,
                     .tokens = kTokens,
                     .kv_heads = kHeads,
                     .head_size = kSize,
                     .pages = kPages,
                     .page_tokens = kPageTokens,
                     .key = key.data(),
                     .key_token_stride = kHeads * kSize,
                     .key_head_stride = kSize,
                     .value = value.data(),
                     .value_token_stride = kHeads * kSize,
                     .value_head_stride = kSize,
                     .keys = side(keys, key_scales),
                     .values = side(values, value_scales),
                     .slots = slots.data()};
    const auto untouched = keys;
    slots[4] = 12;
    CHECK(paged_append(call).message() == "paged_append_: token 4 has slot 12, and there are 12 slots");
    slots[4] = -2;
    CHECK_FALSE(paged_append(call).ok());
    CHECK(keys == untouched);
    slots[4] = 6;
    REQUIRE(paged_append(call).ok());

    std::vector<float> floats(kSize), wanted(kSize);
    const auto check = [&](int64_t slot, int64_t token) {
      for (int64_t head = 0; head < kHeads; ++head) {
        const int64_t row = (slot / kPageTokens * kHeads + head) * kPageTokens + slot % kPageTokens;
        const std::byte* const bytes = values.data() + row * kSize * cache_element_bytes(cache);
        dequantize_rows(cache, bytes, value_scales.data() + row, 1, kSize, floats.data());
        const float* const from = value.data() + (token * kHeads + head) * kSize;
        for (int64_t i = 0; i < kSize; ++i) CHECK(std::abs(floats[static_cast<size_t>(i)] - from[i]) <= 0.0625);
        if (cache == CacheElement::kFloat32) CHECK(std::memcmp(bytes, from, kSize * sizeof(float)) == 0);
      }
    };
    check(6, 4);
    check(11, 1);
    check(0, 3);
    const size_t row_bytes = kSize * static_cast<size_t>(cache_element_bytes(cache));
    CHECK(std::equal(keys.begin() + static_cast<std::ptrdiff_t>(row_bytes),
                     keys.begin() + static_cast<std::ptrdiff_t>(2 * row_bytes),
                     untouched.begin() + static_cast<std::ptrdiff_t>(row_bytes)));
  }
}

}  // namespace hetero::backend::testing
