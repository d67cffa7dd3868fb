// Attention and its gradients against sums in double, for every instruction set of this processor.

#include "backend/cpu/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/kernels/attention_kernel.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "backend/cpu/vector/half.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr Element kElements[] = {Element::kFloat32, Element::kBfloat16, Element::kFloat16};

// ThreadSanitizer makes arithmetic forty times as slow, which the other builds check: under it, the
// first of some cases.
#if defined(__SANITIZE_THREAD__)
constexpr bool kFirstOnly = true;
#else
constexpr bool kFirstOnly = false;
#endif

std::vector<int64_t> cases(std::vector<int64_t> sizes) {
  if (kFirstOnly) sizes.resize(1);
  return sizes;
}

std::vector<InstructionSet> instruction_sets() {
  if (kFirstOnly) return {instruction_set()};
  std::vector<InstructionSet> sets;
  for (int set = 0; set <= static_cast<int>(instruction_set()); ++set) sets.push_back(static_cast<InstructionSet>(set));
  return sets;
}

float random_number() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(static_cast<int32_t>(state)) / 1073741824.0f;
}

// How [batches, heads, rows, columns] lies in memory: heads interleaved as projections give them,
// or one after another as in a cache.
enum class Layout { kInterleaved, kByHead };

// Between the rows are NaNs, so that reading or writing there shows.
class Tensor {
 public:
  Tensor(Element element, Layout layout, int64_t batches, int64_t heads, int64_t rows, int64_t columns, int64_t gap = 3)
      : element(element), rows(rows), columns(columns), width(columns + gap) {
    const bool interleaved = layout == Layout::kInterleaved;
    head_stride = interleaved ? width : rows * width;
    row_stride = interleaved ? heads * width : width;
    batch_stride = heads * rows * width + (width % 2 == 0 ? 2 : 1);
    const int64_t count = batches * batch_stride + 1;
    bytes_.resize(static_cast<size_t>(count * element_bytes(element)));
    for (int64_t i = 0; i < count; ++i) put(i, kNaN);
    for (int64_t b = 0; b < batches; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < columns; ++c) put(index(b, h, r, c), random_number());
        }
      }
    }
  }
  int64_t index(int64_t b, int64_t h, int64_t r, int64_t c) const {
    return b * batch_stride + h * head_stride + r * row_stride + c;
  }
  void put(int64_t i, float value) {
    decoded_.clear();
    if (element == Element::kFloat32) {
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
    } else {
      const uint16_t bits = element == Element::kBfloat16 ? float_to_bfloat16(value) : float_to_float16(value);
      std::memcpy(bytes_.data() + 2 * i, &bits, 2);
    }
  }
  float get(int64_t i) const {
    float value;
    uint16_t bits;
    if (element == Element::kFloat32) {
      std::memcpy(&value, bytes_.data() + 4 * i, 4);
      return value;
    }
    std::memcpy(&bits, bytes_.data() + 2 * i, 2);
    return element == Element::kBfloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
  }
  double at(int64_t b, int64_t h, int64_t r, int64_t c) const { return get(index(b, h, r, c)); }
  // As doubles, decoded once: not for tensors that kernels write.
  const double* row(int64_t b, int64_t h, int64_t r) const {
    if (decoded_.empty()) {
      const auto count = static_cast<int64_t>(bytes_.size()) / element_bytes(element);
      for (int64_t i = 0; i < count; ++i) decoded_.push_back(get(i));
    }
    return decoded_.data() + index(b, h, r, 0);
  }
  void scale(float factor) {
    for (size_t i = 0; i < bytes_.size() / static_cast<size_t>(element_bytes(element)); ++i) {
      put(static_cast<int64_t>(i), get(static_cast<int64_t>(i)) * factor);
    }
  }
  AttentionOperand operand() { return {bytes_.data(), batch_stride, head_stride, row_stride}; }
  bool gaps_are_untouched(int64_t batches, int64_t heads) const {
    for (int64_t b = 0; b < batches; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = columns; c < width; ++c) {
            if (!std::isnan(at(b, h, r, c))) return false;
          }
        }
      }
    }
    return true;
  }
  std::vector<std::byte>& bytes() {
    decoded_.clear();
    return bytes_;
  }

  Element element;
  int64_t rows, columns, width, head_stride, row_stride, batch_stride;

 private:
  std::vector<std::byte> bytes_;
  mutable std::vector<double> decoded_;
};

enum class Mask { kNone, kFull, kKeys, kRows };

struct Case {
  int64_t batches, heads, queries, keys, size;
  Element element = Element::kFloat32;
  bool causal = false;
  Mask mask = Mask::kNone;
  float magnitude = 1;   // of queries
  float scale = 0;       // 0 for the usual one
  int64_t kv_heads = 0;  // 0 for `heads`
  Layout layout = Layout::kInterleaved;

  // Pairs of bfloat16 are read where all strides are even, which mostly is the case.
  int64_t gap() const { return size % 2 == 0 && keys % 3 != 0 ? 4 : 3; }
  int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t key_head(int64_t head) const { return head / (heads / key_heads()); }
};

std::string text(const Case& c, InstructionSet set) {
  return std::string(to_string(set)) + ": [" + std::to_string(c.batches) + ", " + std::to_string(c.heads) + " on " +
         std::to_string(c.key_heads()) + ", " + std::to_string(c.queries) + " x " + std::to_string(c.keys) + ", " +
         std::to_string(c.size) + "] element " + std::to_string(static_cast<int>(c.element)) +
         (c.causal ? " causal" : "") + (c.layout == Layout::kByHead ? " by head" : "") + " mask " +
         std::to_string(static_cast<int>(c.mask)) + " magnitude " + std::to_string(c.magnitude);
}

// A call with its memory.
struct Problem {
  Problem(const Case& c, InstructionSet set)
      : c(c),
        set(set),
        q(c.element, c.layout, c.batches, c.heads, c.queries, c.size, c.gap()),
        k(c.element, c.layout, c.batches, c.key_heads(), c.keys, c.size, c.gap()),
        v(c.element, c.layout, c.batches, c.key_heads(), c.keys, c.size, 0),
        out(c.element, c.layout, c.batches, c.heads, c.queries, c.size),
        logsumexp(Element::kFloat32, c.layout, c.batches, c.heads, c.queries, 1, 0),
        mask(c.element, c.layout, c.batches, c.heads, c.mask == Mask::kKeys ? 1 : c.queries,
             c.mask == Mask::kRows ? 1 : c.keys),
        grad_out(c.element, c.layout, c.batches, c.heads, c.queries, c.size),
        grad_q(c.element, c.layout, c.batches, c.heads, c.queries, c.size),
        grad_k(c.element, c.layout, c.batches, c.key_heads(), c.keys, c.size, 0),
        grad_v(c.element, c.layout, c.batches, c.key_heads(), c.keys, c.size) {
    q.scale(c.magnitude);
    const auto usual = static_cast<float>(1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, c.size))));
    call = {.element = c.element,
            .causal = c.causal,
            .batches = c.batches,
            .heads = c.heads,
            .kv_heads = c.key_heads(),
            .queries = c.queries,
            .keys = c.keys,
            .head_size = c.size,
            .scale = c.scale == 0 ? usual : c.scale,
            .q = q.operand(),
            .k = k.operand(),
            .v = v.operand(),
            .out = out.operand(),
            .mask = {},
            .logsumexp = logsumexp.operand()};
    if (c.mask == Mask::kNone) return;
    const AttentionOperand place = mask.operand();
    call.mask = {c.element,
                 place.data,
                 place.batch_stride,
                 place.head_stride,
                 c.mask == Mask::kKeys ? 0 : place.row_stride,
                 c.mask == Mask::kRows ? 0 : 1};
    for (int64_t b = 0; b < c.batches; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t r = 0; r < mask.rows; ++r) {
          for (int64_t j = 0; j < mask.columns; ++j) {
            // A third of the entries, and the whole of some rows.
            const bool masked = random_number() > 0.67f || (c.mask != Mask::kKeys && r % 7 == 3);
            if (masked) mask.put(mask.index(b, h, r, j), -kInfinity);
          }
        }
      }
    }
  }

  void forward() { attention_forward(call, set); }
  void backward() {
    attention_backward({call, grad_out.operand(), grad_q.operand(), grad_k.operand(), grad_v.operand()}, set);
  }

  // The score of a query and a key, -inf where it is not attended to.
  double score(int64_t b, int64_t h, int64_t r, int64_t j) const {
    if (c.causal && j > r) return -kInfinity;
    double sum = 0;
    const double *const query = q.row(b, h, r), *const key = k.row(b, c.key_head(h), j);
    for (int64_t d = 0; d < c.size; ++d) sum += query[d] * key[d];
    sum *= call.scale;
    if (c.mask != Mask::kNone) sum += mask.at(b, h, c.mask == Mask::kKeys ? 0 : r, c.mask == Mask::kRows ? 0 : j);
    return sum;
  }
  // The weights of a row; its logsumexp, 0 where nothing is attended to.
  double weights(int64_t b, int64_t h, int64_t r, std::vector<double>& row) const {
    row.resize(static_cast<size_t>(c.keys));
    double largest = -kInfinity, sum = 0;
    for (int64_t j = 0; j < c.keys; ++j) largest = std::max(largest, row[j] = score(b, h, r, j));
    if (largest == -kInfinity) {
      std::fill(row.begin(), row.end(), 0.0);
      return 0;
    }
    for (double& weight : row) sum += weight = std::exp(weight - largest);
    for (double& weight : row) weight /= sum;
    return largest + std::log(sum);
  }

  bool forward_is_right() const {
    std::vector<double> row, sums, magnitudes;
    for (int64_t b = 0; b < c.batches; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t r = 0; r < c.queries; ++r) {
          if (!close(logsumexp.at(b, h, r, 0), weights(b, h, r, row), Element::kFloat32)) return false;
          sums.assign(static_cast<size_t>(c.size), 0);
          magnitudes = sums;
          for (int64_t j = 0; j < c.keys; ++j) {
            const double* const value = v.row(b, c.key_head(h), j);
            const double weight = row[j];
            double *const sum = sums.data(), *const magnitude = magnitudes.data();
            for (int64_t d = 0; d < c.size; ++d) {
              sum[d] += weight * value[d];
              magnitude[d] += std::abs(weight * value[d]);
            }
          }
          for (int64_t d = 0; d < c.size; ++d) {
            // Weights of bfloat16 may be rounded.
            const double rounding = c.element == Element::kBfloat16 ? 0x1p-8 * magnitudes[d] : 0;
            if (!close(out.at(b, h, r, d), sums[d], c.element, 1, rounding)) return false;
          }
        }
      }
    }
    return out.gaps_are_untouched(c.batches, c.heads);
  }

  // Gradients of the result as it was stored.
  bool backward_is_right() const {
    std::vector<double> row, dk, dv;
    const auto sharing = static_cast<double>(c.heads) / static_cast<double>(std::max<int64_t>(1, c.key_heads()));
    const auto same = [&](const Tensor& actual, int64_t b, int64_t h, const std::vector<double>& expected,
                          double sums = 1) {
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        if (!close(actual.at(b, h, at / c.size, at % c.size), expected[i], c.element, std::sqrt(sums))) return false;
      }
      return true;
    };
    for (int64_t b = 0; b < c.batches; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t key_head = c.key_head(h);
        std::vector<double> dq(static_cast<size_t>(c.queries * c.size));
        if (h == 0 || key_head != c.key_head(h - 1)) {
          dk.assign(static_cast<size_t>(c.keys * c.size), 0);
          dv = dk;
        }
        for (int64_t r = 0; r < c.queries; ++r) {
          weights(b, h, r, row);
          double dot = 0;
          for (int64_t d = 0; d < c.size; ++d) dot += grad_out.at(b, h, r, d) * out.at(b, h, r, d);
          const double *const gradient = grad_out.row(b, h, r), *const query = q.row(b, h, r);
          double* const of_query = dq.data() + r * c.size;
          for (int64_t j = 0; j < c.keys; ++j) {
            const double *const key = k.row(b, key_head, j), *const value = v.row(b, key_head, j);
            double change = -dot;
            for (int64_t d = 0; d < c.size; ++d) change += gradient[d] * value[d];
            change *= row[j] * call.scale;
            double *const of_key = dk.data() + j * c.size, *const of_value = dv.data() + j * c.size;
            for (int64_t d = 0; d < c.size; ++d) {
              of_query[d] += change * key[d];
              of_key[d] += change * query[d];
              of_value[d] += row[j] * gradient[d];
            }
          }
        }
        if (!same(grad_q, b, h, dq)) return false;
        const bool last = h + 1 == c.heads || c.key_head(h + 1) != key_head;
        if (last && (!same(grad_k, b, key_head, dk, sharing) || !same(grad_v, b, key_head, dv, sharing))) return false;
      }
    }
    return grad_q.gaps_are_untouched(c.batches, c.heads) && grad_v.gaps_are_untouched(c.batches, c.key_heads());
  }

  // PyTorch's default tolerances, times a factor; scores of a large magnitude have errors of that
  // magnitude.
  bool close(double actual, double expected, Element element, double factor = 1, double more = 0) const {
    const double relative = element == Element::kFloat32 ? 1.3e-6 : element == Element::kFloat16 ? 1e-3 : 1.6e-2;
    const float usual = 1 / std::sqrt(static_cast<float>(std::max<int64_t>(1, c.size)));
    const float magnitude = std::max(1.0f, c.magnitude * std::abs(call.scale) / usual);
    return std::abs(actual - expected) <= (relative * std::abs(expected) + 1e-5) * magnitude * factor + more;
  }

  Case c;
  InstructionSet set;
  Tensor q, k, v, out, logsumexp, mask, grad_out, grad_q, grad_k, grad_v;
  Attention call;
};

void check(const Case& c) {
  for (const InstructionSet set : instruction_sets()) {
    INFO(text(c, set));
    Problem problem(c, set);
    if (set == InstructionSet::kAvx512 && has_tiles_for(c.element)) {
      INFO("on the tile unit");
      problem.forward();
      REQUIRE(problem.forward_is_right());
    }
    problem.call.tiles = false;
    problem.forward();
    REQUIRE(problem.forward_is_right());
    problem.backward();
    REQUIRE(problem.backward_is_right());
  }
}

TEST_CASE("attention is right for every element type, mask and odd sizes") {
  for (const Element element : kElements) {
    for (const Mask mask : {Mask::kNone, Mask::kFull, Mask::kKeys, Mask::kRows}) {
      for (const bool causal : {false, true}) {
        for (const int64_t queries : cases({33, 1, 7, 129})) {
          for (const int64_t keys : cases({33, 1, 7, 129})) check({1, 2, queries, keys, 20, element, causal, mask});
        }
      }
    }
  }
}

TEST_CASE("attention of bfloat16 is right by the processor's instructions, and as floats") {
  if (!has_bfloat16_instructions()) {
    WARN("a test skipped: this processor has no AVX512-BF16");
    return;
  }
  for (const bool preferred : {true, false}) {
    prefer_bfloat16_instructions(preferred);
    for (const bool causal : {false, true}) {
      check({1, 4, 129, 129, 20, Element::kBfloat16, causal, Mask::kFull});
      check({1, 1, 33, 600, 64, Element::kBfloat16, causal, Mask::kNone});
    }
  }
  prefer_bfloat16_instructions(std::nullopt);
}

TEST_CASE("every head size has its end handled") {
  for (int64_t size = 1; size <= (kFirstOnly ? 3 : 70); ++size) {
    check({2, 3, 5, 9, size});
    check({1, 3, 26, 18, size});
  }
  check({1, 1, 30, 40, 129});
  check({1, 1, 30, 40, 256});
}

TEST_CASE("attention goes on from block to block of keys, and over groups of queries") {
  for (const bool causal : {false, true}) {
    check({1, 2, 50, 1100, 8, Element::kFloat32, causal, Mask::kNone});
    check({1, 2, 50, 1100, 8, Element::kFloat32, causal, Mask::kFull});
    check({1, 1, 600, 1100, 8, Element::kFloat32, causal, Mask::kNone});
    check({1, 1, 600, 520, 8, Element::kBfloat16, causal, Mask::kKeys});
  }
}

TEST_CASE("heads of queries may share a head of keys") {
  for (const Element element : kElements) {
    for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{4, 2}, {6, 2}, {9, 1}, {32, 1}, {3, 3}, {1, 1}}) {
      for (const Layout layout : {Layout::kInterleaved, Layout::kByHead}) {
        for (const bool causal : {false, true}) {
          for (const Mask mask : {Mask::kNone, Mask::kFull}) {
            for (const int64_t queries : cases({3, 1, 30})) {
              check({.batches = 2,
                     .heads = heads,
                     .queries = queries,
                     .keys = 21,
                     .size = 20,
                     .element = element,
                     .causal = causal,
                     .mask = mask,
                     .kv_heads = kv_heads,
                     .layout = layout});
            }
          }
        }
      }
    }
    for (const Layout layout : {Layout::kInterleaved, Layout::kByHead}) {
      for (const int64_t queries : cases({1, 260})) {
        check({.batches = 1,
               .heads = 4,
               .queries = queries,
               .keys = 530,
               .size = 8,
               .element = element,
               .causal = queries > 1,
               .kv_heads = 2,
               .layout = layout});
      }
    }
  }
}

TEST_CASE("large scores do not overflow, and any scale is taken") {
  for (const int64_t queries : {3, 40}) {
    check({1, 1, queries, 70, 16, Element::kFloat32, false, Mask::kNone, 300});
    check({1, 1, queries, 600, 16, Element::kFloat32, true, Mask::kFull, 300});
    check({1, 1, queries, 70, 16, Element::kFloat32, false, Mask::kNone, 1, -0.7f});
    check({1, 1, queries, 70, 16, Element::kFloat32, true, Mask::kFull, 1, 2});
  }
}

TEST_CASE("a row whose mask is the lowest number everywhere weighs all keys alike") {
  for (const InstructionSet set : instruction_sets()) {
    for (const int64_t queries : {2, 20}) {
      Problem problem({1, 1, queries, 35, 4, Element::kFloat32, false, Mask::kRows}, set);
      for (int64_t r = 0; r < queries; ++r) {
        problem.mask.put(problem.mask.index(0, 0, r, 0), std::numeric_limits<float>::lowest());
      }
      problem.forward();
      for (int64_t d = 0; d < 4; ++d) {
        double mean = 0;
        for (int64_t j = 0; j < 35; ++j) mean += problem.v.at(0, 0, j, d) / 35;
        REQUIRE(std::abs(problem.out.at(0, 0, 0, d) - mean) < 1e-6);
      }
    }
  }
}

TEST_CASE("NaN stays in its row") {
  for (const InstructionSet set : instruction_sets()) {
    for (const auto& [queries, tiles] : {std::pair<int64_t, bool>{3, true}, {20, false}, {20, true}, {300, true}}) {
      Problem problem({1, 1, queries, 35, 4}, set);
      problem.call.tiles = tiles;
      problem.q.put(problem.q.index(0, 0, 1, 2), kNaN);
      problem.forward();
      for (int64_t r = 0; r < queries; ++r) REQUIRE(std::isnan(problem.out.at(0, 0, r, 3)) == (r == 1));
    }
  }
}

TEST_CASE("infinite bfloat16 values stay infinite on the tile unit") {
  if (!has_tiles()) WARN("1 test skipped: this processor has no tile unit, or the system does not let it be used");
  Problem problem({1, 1, 32, 40, 32, Element::kBfloat16}, instruction_set());
  problem.v.put(problem.v.index(0, 0, 7, 3), kInfinity);
  problem.forward();
  for (int64_t r = 0; r < 32; ++r) {
    INFO(r << ": " << problem.out.at(0, 0, r, 3));
    REQUIRE(std::isinf(problem.out.at(0, 0, r, 3)));
    REQUIRE(std::isfinite(problem.out.at(0, 0, r, 4)));
  }
}

TEST_CASE("infinite, very large and very small float32 operands are those of vectors, on the tile unit too") {
  if (!has_tiles()) WARN("1 test skipped: this processor has no tile unit, or the system does not let it be used");
  for (const float special : {kInfinity, -kInfinity, 3e38f, 1e-37f}) {
    for (const int operand : {0, 1, 2}) {
      std::vector<std::byte> results[2];
      for (const bool tiles : {false, true}) {
        Problem problem({1, 2, 40, 50, 8, Element::kFloat32, false, Mask::kNone}, instruction_set());
        Tensor& tensor = operand == 0 ? problem.q : operand == 1 ? problem.k : problem.v;
        // A whole row, so that the small ones matter; the numbers are those of the other problem.
        for (int64_t d = 0; d < 8; ++d) {
          for (Tensor* each : {&problem.q, &problem.k, &problem.v}) {
            for (int64_t r = 0; r < each->rows; ++r) {
              for (int64_t h = 0; h < 2; ++h)
                each->put(each->index(0, h, r, d), 0.01f * static_cast<float>((r * 7 + d * 3 + h) % 50));
            }
          }
        }
        for (int64_t d = 0; d < 8; ++d) tensor.put(tensor.index(0, 0, 5, d), special);
        problem.call.tiles = tiles;
        problem.forward();
        results[tiles] = problem.out.bytes();
      }
      INFO("operand " << operand << ", " << special);
      REQUIRE(results[0].size() == results[1].size());
      for (size_t i = 0; i + 4 <= results[0].size(); i += 4) {
        float a, b;
        std::memcpy(&a, &results[0][i], 4);
        std::memcpy(&b, &results[1][i], 4);
        REQUIRE(((std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) <= 1e-5f * std::abs(a)));
      }
    }
  }
}

TEST_CASE("without queries nothing is written, and without keys results are zero") {
  for (const InstructionSet set : instruction_sets()) {
    for (const Case& c : {Case{2, 2, 0, 5, 4}, Case{0, 2, 5, 5, 4}, Case{2, 0, 5, 5, 4}, Case{2, 2, 5, 0, 4},
                          Case{2, 2, 30, 0, 4}, Case{2, 2, 30, 5, 0}, Case{2, 2, 30, 0, 4, Element::kBfloat16},
                          Case{.batches = 1, .heads = 4, .queries = 0, .keys = 5, .size = 4, .kv_heads = 2},
                          Case{.batches = 1, .heads = 4, .queries = 3, .keys = 0, .size = 4, .kv_heads = 2},
                          Case{.batches = 1, .heads = 4, .queries = 30, .keys = 0, .size = 4, .kv_heads = 2}}) {
      INFO(text(c, set));
      Problem problem(c, set);
      problem.forward();
      REQUIRE(problem.forward_is_right());
      problem.backward();
      REQUIRE(problem.backward_is_right());
    }
  }
}

TEST_CASE("attention by two threads has the bits of one") {
  const ParallelPool pool{[](int64_t begin, int64_t end, int64_t, RangeFunction body) {
                            const int64_t middle = begin + (end - begin) / 2;
                            std::thread other([&] { body(begin, middle); });
                            body(middle, end);
                            other.join();
                          },
                          [] { return int64_t{2}; }};
  for (const bool causal : {false, true}) {
    for (const Case& c :
         {Case{2, 3, 100, 600, 40, Element::kFloat32, causal}, Case{1, 4, 1, 3000, 64, Element::kFloat32, causal},
          Case{.batches = 1,
          .heads = 8,
          .queries = 100,
          .keys = 600,
          .size = 40,
          .element = Element::kBfloat16,
          .causal = causal,
          .kv_heads = 2},
          Case{.batches = 1,
          .heads = 12,
          .queries = 1,
          .keys = 3000,
          .size = 64,
          .element = Element::kBfloat16,
          .causal = causal,
          .kv_heads = 1}}) {
      Problem one(c, instruction_set());
      Problem two = one;
      two.call = Problem(c, instruction_set()).call;
      two.call.q = two.q.operand();
      two.call.k = two.k.operand();
      two.call.v = two.v.operand();
      two.call.out = two.out.operand();
      two.call.logsumexp = two.logsumexp.operand();
      one.forward();
      one.backward();
      set_parallel_pool(&pool);
      two.forward();
      two.backward();
      set_parallel_pool(nullptr);
      REQUIRE(one.out.bytes() == two.out.bytes());
      REQUIRE(one.logsumexp.bytes() == two.logsumexp.bytes());
      REQUIRE(one.grad_q.bytes() == two.grad_q.bytes());
      REQUIRE(one.grad_k.bytes() == two.grad_k.bytes());
      REQUIRE(one.grad_v.bytes() == two.grad_v.bytes());
    }
  }
}

TEST_CASE("exp is right within two units in the last place") {
  for (const InstructionSet set : instruction_sets()) {
    std::vector<float> inputs;
    for (float x = -87.33f; x <= 88; x += 0.00173f) inputs.push_back(x);
    std::vector<float> outputs = inputs;
    attention_kernels(set).exponentials(outputs.data(), static_cast<int64_t>(outputs.size()));
    double worst = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const double right = std::exp(static_cast<double>(inputs[i]));
      const auto nearest = static_cast<float>(right);
      const double unit = static_cast<double>(std::nextafter(nearest, kInfinity)) - nearest;
      worst = std::max(worst, std::abs(outputs[i] - right) / unit);
    }
    INFO(to_string(set));
    REQUIRE(worst <= 2);
    float special[] = {-kInfinity, -1000, -87.4f, std::numeric_limits<float>::lowest(), 0, kNaN};
    attention_kernels(set).exponentials(special, 6);
    for (int i = 0; i < 4; ++i) REQUIRE(special[i] == 0);
    REQUIRE(special[4] == 1);
    REQUIRE(std::isnan(special[5]));
  }
}

}  // namespace
}  // namespace hetero::backend
