#include "backend/cpu/quantized/checkpoint.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "backend/base/parallel.h"

namespace hetero::backend {
namespace {

// The place in an int32 of each of eight neighbours along n.
constexpr int kAwqPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};

uint8_t bits_at(int32_t word, int64_t place, int bits) {
  return static_cast<uint8_t>(static_cast<uint32_t>(word) >> (place * bits) & ((1u << bits) - 1));
}

// The whole number of column i of an output.
uint8_t number_at(const CheckpointWeight& from, int64_t output, int64_t i) {
  const int64_t in_word = 32 / from.shape.bits;
  if (from.layout == CheckpointLayout::kAwq) {
    return bits_at(from.qweight[i * (from.shape.n / 8) + output / 8], kAwqPlace[output % 8], 4);
  }
  return bits_at(from.qweight[i / in_word * from.shape.n + output], i % in_word, from.shape.bits);
}

uint8_t zero_at(const CheckpointWeight& from, int64_t group, int64_t output) {
  const int64_t in_word = 32 / from.shape.bits;
  const int32_t word = from.qzeros[group * (from.shape.n / in_word) + output / in_word];
  if (from.layout == CheckpointLayout::kAwq) return bits_at(word, kAwqPlace[output % 8], 4);
  const uint8_t stored = bits_at(word, output % in_word, from.shape.bits);
  const int zero = from.layout == CheckpointLayout::kGptq ? stored + 1 : stored;
  return static_cast<uint8_t>(zero & from.shape.largest());
}

Status check_shape(const CheckpointWeight& from) {
  const QuantizedShape& shape = from.shape;
  const int64_t in_word = 32 / shape.bits;
  const bool awq = from.layout == CheckpointLayout::kAwq;
  if (awq && shape.bits != 4) {
    return Status(ErrorClass::kUsage, "AWQ has weights of 4 bits, not of " + std::to_string(shape.bits));
  }
  if (shape.n <= 0 || shape.k <= 0 || shape.n % in_word != 0 || shape.k % in_word != 0) {
    return Status(ErrorClass::kUsage, "a packed weight has a multiple of " + std::to_string(in_word) +
                                          " rows and columns, not " + std::to_string(shape.n) + " and " +
                                          std::to_string(shape.k));
  }
  if (shape.group < 0 || shape.group % kQuantizedDepth != 0) {
    return Status(ErrorClass::kUsage, "groups of " + std::to_string(shape.group) +
                                          " columns cannot be read, only whole rows and multiples of 32");
  }
  if (shape.group != 0 && shape.k % shape.group != 0) {
    return Status(ErrorClass::kUsage,
                  std::to_string(shape.k) + " columns are not whole groups of " + std::to_string(shape.group));
  }
  return {};
}

// The columns sorted by group, or none if they are in this order already.
Result<std::vector<int32_t>> order_of(const CheckpointWeight& from) {
  const QuantizedShape& shape = from.shape;
  if (from.group_of == nullptr) return std::vector<int32_t>();
  const int64_t size = shape.group == 0 ? shape.k : shape.group;
  std::vector<int64_t> counts(static_cast<size_t>(shape.k / size));
  bool sorted = true;
  for (int64_t i = 0; i < shape.k; ++i) {
    const int32_t group = from.group_of[i];
    if (group < 0 || group >= static_cast<int64_t>(counts.size())) {
      return Status(ErrorClass::kUsage, "column " + std::to_string(i) + " is in group " + std::to_string(group) +
                                            ", but there are " + std::to_string(counts.size()) + " groups");
    }
    ++counts[static_cast<size_t>(group)];
    sorted = sorted && (i == 0 || from.group_of[i - 1] <= group);
  }
  for (size_t group = 0; group < counts.size(); ++group) {
    if (counts[group] == size) continue;
    return Status(ErrorClass::kUsage, "group " + std::to_string(group) + " has " + std::to_string(counts[group]) +
                                          " columns instead of " + std::to_string(size));
  }
  if (sorted) return std::vector<int32_t>();
  std::vector<int32_t> order(static_cast<size_t>(shape.k));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return from.group_of[a] < from.group_of[b]; });
  return order;
}

}  // namespace

Result<ImportedWeight> import_weight(const CheckpointWeight& from) {
  if (Status status = check_shape(from); !status.ok()) return status;
  Result<std::vector<int32_t>> order = order_of(from);
  if (!order.ok()) return order.status();
  ImportedWeight made;
  made.shape = from.shape;
  made.order = std::move(order.value());
  const QuantizedShape& shape = made.shape;
  std::vector<uint8_t> numbers(static_cast<size_t>(shape.n * shape.k));
  parallel_for(0, shape.n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t output = begin; output < end; ++output) {
      for (int64_t i = 0; i < shape.k; ++i) {
        const int64_t column = made.order.empty() ? i : made.order[static_cast<size_t>(i)];
        numbers[static_cast<size_t>(output * shape.k + i)] = number_at(from, output, column);
      }
    }
  });
  made.packed.resize(static_cast<size_t>(shape.packed_bytes()));
  pack_quantized(shape, numbers.data(), made.packed.data());

  made.scales.resize(static_cast<size_t>(shape.scale_count()));
  made.zeros.resize(static_cast<size_t>(shape.scale_count()), static_cast<uint8_t>(shape.middle()));
  for (int64_t group = 0; group < shape.groups(); ++group) {
    for (int64_t output = 0; output < shape.n; ++output) {
      const auto index = static_cast<size_t>(shape.scale_index(output, group));
      made.scales[index] = from.scales[group * shape.n + output];
      made.zeros[index] = zero_at(from, group, output);
    }
  }
  const auto is_middle = [&](uint8_t zero) { return zero == shape.middle(); };
  if (std::all_of(made.zeros.begin(), made.zeros.end(), is_middle)) made.zeros.clear();
  return made;
}

}  // namespace hetero::backend
