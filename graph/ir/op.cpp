#include "graph/ir/op.h"

#include <cstdlib>
#include <utility>

namespace hetero::graph {

const char* to_string(OpClass op_class) {
  switch (op_class) {
    case OpClass::kPointwise:
      return "pointwise";
    case OpClass::kReduction:
      return "reduction";
    case OpClass::kMatmul:
      return "matmul";
    case OpClass::kConvolution:
      return "convolution";
    case OpClass::kNormalization:
      return "normalization";
    case OpClass::kAttention:
      return "attention";
    case OpClass::kIndexing:
      return "indexing";
    case OpClass::kCopy:
      return "copy";
    case OpClass::kRandom:
      return "random";
    case OpClass::kOther:
      return "other";
  }
  return "?";
}

OpId OpTable::add(OpTraits traits) {
  const std::lock_guard lock(mutex_);
  const size_t size = size_.load(std::memory_order_relaxed);
  const size_t chunk = size >> kChunkBits;
  // A quarter of a million operators: something adds them in a loop.
  if (chunk == kMaxChunks) std::abort();
  if (chunks_[chunk].load(std::memory_order_relaxed) == nullptr) {
    chunks_[chunk].store(new OpTraits[size_t{1} << kChunkBits], std::memory_order_release);
  }
  const auto id = static_cast<OpId>(size);
  by_name_[traits.name] = id;
  chunks_[chunk].load(std::memory_order_relaxed)[id & kChunkMask] = std::move(traits);
  size_.store(size + 1, std::memory_order_release);
  return id;
}

OpId OpTable::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? kNoOp : found->second;
}

OpId OpTable::resolve(std::string_view name) {
  const OpId known = find(name);
  auto* const resolver = resolver_.load();
  if (known != kNoOp || resolver == nullptr) return known;
  resolver(std::string(name));
  return find(name);
}

OpTable& op_table() {
  static OpTable& table = *new OpTable;
  return table;
}

}  // namespace hetero::graph
