#include "backend/cuda/fused/levels.h"

#include <algorithm>

namespace hetero::backend {

using Kind = FusedStep::Kind;

FusedLevels::FusedLevels(const FusedKernel& kernel, const CudaVariant& variant)
    : kernel_(kernel),
      definition_(kernel.values.size()),
      level_(kernel.values.size()),
      reduction_(kernel.values.size()) {
  for (const CudaVariant::Operand& it : variant.operands) row_stores_.push_back(it.row_store);
  for (size_t s = 0; s < kernel.steps.size(); ++s) {
    const FusedStep& it = kernel.steps[s];
    if (it.kind == Kind::kStore) continue;
    definition_[it.value] = s;
    int level = 0;
    for (int j = 0; j < it.input_count; ++j) level = std::max(level, level_[it.inputs[j]]);
    if (it.kind == Kind::kReduce) {
      reduction_[it.value] = reductions_++;
      ++level;
    }
    level_[it.value] = level;
    last_ = std::max(last_, level);
  }
}

bool FusedLevels::has_row_stores() const {
  return std::ranges::any_of(kernel_.steps, [&](const FusedStep& it) { return is_row_store(it); });
}
bool FusedLevels::has_entry_stores() const {
  return std::ranges::any_of(kernel_.steps, [&](const FusedStep& it) { return is_entry_store(it); });
}

void FusedLevels::need(uint16_t value, std::vector<uint8_t>& result) const {
  if (result[value] != 0 || is_row(value)) return;
  result[value] = 1;
  const FusedStep& it = kernel_.steps[definition_[value]];
  for (int j = 0; j < it.input_count; ++j) need(it.inputs[j], result);
}

std::vector<uint8_t> FusedLevels::needed(int level, bool stores) const {
  std::vector<uint8_t> result(kernel_.values.size());
  for (const FusedStep& it : kernel_.steps) {
    if (stores && is_entry_store(it)) need(it.value, result);
    if (!stores && is_reduction_of(it, level)) need(it.inputs[0], result);
  }
  return result;
}

}  // namespace hetero::backend
