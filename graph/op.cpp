#include "graph/op.h"

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
  const auto id = static_cast<OpId>(entries_.size());
  by_name_.emplace(traits.name, id);
  entries_.push_back(std::move(traits));
  return id;
}

OpId OpTable::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? static_cast<OpId>(entries_.size()) : found->second;
}

OpTable& op_table() {
  static OpTable& table = *new OpTable;
  return table;
}

}  // namespace hetero::graph
