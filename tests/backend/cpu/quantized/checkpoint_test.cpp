// Weights of GPTQ and AWQ checkpoints against a plain reading of their layouts.

#include "backend/cpu/quantized/checkpoint.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/vector/half.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

// Random whole numbers as a checkpoint packs them, with the weight that they mean.
struct Checkpoint {
  QuantizedShape shape;
  CheckpointLayout layout;
  std::vector<int32_t> qweight, qzeros, group_of;
  std::vector<uint16_t> scales;
  std::vector<float> meaning;  // [n, k]

  CheckpointWeight weight() const {
    return {layout, shape, qweight.data(), qzeros.data(), scales.data(), group_of.empty() ? nullptr : group_of.data()};
  }
};

void put(std::vector<int32_t>& words, int64_t word, int64_t place, int bits, int value) {
  auto& here = words[static_cast<size_t>(word)];
  here = static_cast<int32_t>(static_cast<uint32_t>(here) | static_cast<uint32_t>(value) << (place * bits));
}

Checkpoint checkpoint(CheckpointLayout layout, const QuantizedShape& shape, bool sorted, bool symmetric = false) {
  // AutoAWQ: the i-th place of an int32 has this output.
  const int awq_order[] = {0, 2, 4, 6, 1, 3, 5, 7};
  std::mt19937 random(1);
  const bool awq = layout == CheckpointLayout::kAwq;
  const int64_t n = shape.n, k = shape.k, in_word = 32 / shape.bits;
  const int64_t size = shape.group == 0 ? k : shape.group, groups = k / size;
  Checkpoint made{shape, layout, {}, {}, {}, {}, {}};
  made.qweight.resize(static_cast<size_t>(n * k / in_word));
  made.qzeros.resize(static_cast<size_t>(groups * n / in_word));
  std::vector<int32_t> group_of(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) group_of[static_cast<size_t>(i)] = static_cast<int32_t>(i / size);
  if (!sorted) std::shuffle(group_of.begin(), group_of.end(), random);
  if (!awq) made.group_of = group_of;
  const auto awq_place = [&](int64_t output) { return std::find(awq_order, awq_order + 8, output % 8) - awq_order; };
  std::vector<int> zeros(static_cast<size_t>(groups * n));
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t output = 0; output < n; ++output) {
      const auto limit = static_cast<unsigned>(shape.largest());
      const int zero = symmetric ? shape.middle() : static_cast<int>(random() % (limit + 1));
      zeros[static_cast<size_t>(group * n + output)] = zero;
      made.scales.push_back(float_to_float16(0.001f + static_cast<float>(random() % 1000) * 1e-4f));
      const int stored = layout == CheckpointLayout::kGptq ? (zero - 1) & shape.largest() : zero;
      put(made.qzeros, group * (n / in_word) + output / in_word, awq ? awq_place(output) : output % in_word, shape.bits,
          stored);
    }
  }
  made.meaning.resize(static_cast<size_t>(n * k));
  for (int64_t output = 0; output < n; ++output) {
    for (int64_t i = 0; i < k; ++i) {
      const int number = static_cast<int>(random() % (static_cast<unsigned>(shape.largest()) + 1));
      if (awq) {
        put(made.qweight, i * (n / 8) + output / 8, awq_place(output), 4, number);
      } else {
        put(made.qweight, i / in_word * n + output, i % in_word, shape.bits, number);
      }
      const auto index = static_cast<size_t>(group_of[static_cast<size_t>(i)] * n + output);
      made.meaning[static_cast<size_t>(output * k + i)] =
          float16_to_float(made.scales[index]) * static_cast<float>(number - zeros[index]);
    }
  }
  return made;
}

void require_meaning(const Checkpoint& from) {
  const Result<ImportedWeight> result = import_weight(from.weight());
  REQUIRE(result.ok());
  const ImportedWeight& made = result.value();
  std::vector<float> values(from.meaning.size());
  dequantize_weight({made.shape, made.packed.data(), Element::kFloat16, made.scales.data(),
                     made.zeros.empty() ? nullptr : made.zeros.data()},
                    Element::kFloat32, values.data());
  const int64_t k = from.shape.k;
  for (int64_t output = 0; output < from.shape.n; ++output) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t column = made.order.empty() ? i : made.order[static_cast<size_t>(i)];
      REQUIRE(values[static_cast<size_t>(output * k + i)] == from.meaning[static_cast<size_t>(output * k + column)]);
    }
  }
}

TEST_CASE("weights of GPTQ and AWQ checkpoints have the values that these say") {
  for (const CheckpointLayout layout : {CheckpointLayout::kGptq, CheckpointLayout::kGptqV2, CheckpointLayout::kAwq}) {
    for (const int bits : {4, 8}) {
      if (layout == CheckpointLayout::kAwq && bits == 8) continue;
      for (const int64_t group : {0, 32, 64, 128}) {
        for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{16, 128}, {40, 256}}) {
          require_meaning(checkpoint(layout, {bits, n, k, group}, true));
        }
      }
    }
  }
}

TEST_CASE("columns of a GPTQ checkpoint that were sorted by importance are gathered by group") {
  const Checkpoint from = checkpoint(CheckpointLayout::kGptq, {4, 16, 256, 64}, false);
  require_meaning(from);
  const Result<ImportedWeight> made = import_weight(from.weight());
  std::vector<int32_t> order = made.value().order;
  REQUIRE_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  std::vector<int32_t> all(256);
  std::iota(all.begin(), all.end(), 0);
  REQUIRE(order == all);
}

TEST_CASE("a checkpoint in which every zero is the middle becomes a symmetric weight") {
  const Checkpoint from = checkpoint(CheckpointLayout::kGptq, {4, 16, 64, 32}, true, true);
  require_meaning(from);
  REQUIRE(import_weight(from.weight()).value().zeros.empty());
}

void require_refused(const CheckpointWeight& from, const std::string& sentence) {
  const Result<ImportedWeight> result = import_weight(from);
  REQUIRE_FALSE(result.ok());
  REQUIRE(result.status().message() == sentence);
}

TEST_CASE("a checkpoint that cannot be read is refused in one sentence") {
  const Checkpoint from = checkpoint(CheckpointLayout::kGptq, {4, 16, 128, 64}, true);
  CheckpointWeight wrong = from.weight();
  wrong.shape.group = 48;
  require_refused(wrong, "groups of 48 columns cannot be read, only whole rows and multiples of 32");
  wrong.shape.group = 96;
  require_refused(wrong, "128 columns are not whole groups of 96");
  wrong = from.weight();
  wrong.shape.n = 12;
  require_refused(wrong, "a packed weight has a multiple of 8 rows and columns, not 12 and 128");
  wrong = from.weight();
  wrong.layout = CheckpointLayout::kAwq;
  wrong.shape.bits = 8;
  require_refused(wrong, "AWQ has weights of 4 bits, not of 8");
  std::vector<int32_t> group_of = from.group_of;
  group_of[5] = 2;
  wrong = from.weight();
  wrong.group_of = group_of.data();
  require_refused(wrong, "column 5 is in group 2, but there are 2 groups");
  group_of[5] = 1;
  require_refused(wrong, "group 0 has 63 columns instead of 64");
}

}  // namespace
}  // namespace hetero::backend
