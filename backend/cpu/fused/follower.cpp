#include "backend/cpu/fused/follower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "backend/cpu/vector/half.h"

namespace hetero::backend {
namespace {

// Whether entries of the type can be the number.
bool is_entry(EntryType type, float number) {
  if (type == EntryType::kFloat16) return float16_to_float(float_to_float16(number)) == number;
  if (type == EntryType::kBFloat16) return bfloat16_to_float(float_to_bfloat16(number)) == number;
  return !std::isnan(number);
}

Limits limits_of(const LimitStep& step, const Number* numbers) {
  Limits limits = step.limits;
  if (step.low_number >= 0) limits.low = numbers[step.low_number].f32;
  if (step.high_number >= 0) limits.high = numbers[step.high_number].f32;
  return limits;
}

}  // namespace

bool Follower::can_follow(const FusedLaunch& launch, uint16_t operand, int64_t entries) {
  if (part_entries(launch) == 0 || launch.space.operands.size() > kMostOperands) return false;
  const OperandView& view = launch.space.operands[operand];
  return view.dense && view.offset == 0 && launch.space.rows * launch.space.row == entries;
}

std::optional<Follower::Ending> Follower::ending(EntryType type) const {
  const LimitStep& step = launch_.limit;
  if (!step.is_there || step.from != operand_ || step.type != type) return std::nullopt;
  if (wanted_ && step.to != operand_) return std::nullopt;
  const Limits limits = limits_of(step, numbers_);
  const OperandView& view = launch_.space.operands[step.to];
  if (!view.dense || !is_entry(step.type, limits.low) || !is_entry(step.type, limits.high)) return std::nullopt;
  return Ending{limits, static_cast<std::byte*>(operands_[step.to]) + view.offset};
}

void Follower::run(int64_t begin, int64_t end, const void* elements) const {
  std::array<void*, kMostOperands> addresses;
  std::copy_n(operands_, launch_.space.operands.size(), addresses.begin());
  // Where the whole result would begin.
  const int64_t before = begin * launch_.space.operands[operand_].bytes;
  addresses[operand_] = reinterpret_cast<void*>(reinterpret_cast<intptr_t>(elements) - before);
  run_fused_part(launch_, addresses.data(), numbers_, begin, end);
}

}  // namespace hetero::backend
