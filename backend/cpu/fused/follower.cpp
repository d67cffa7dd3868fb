#include "backend/cpu/fused/follower.h"

#include <algorithm>
#include <array>

namespace hetero::backend {

bool Follower::can_follow(const FusedLaunch& launch, uint16_t operand, int64_t entries) {
  if (part_entries(launch) == 0 || launch.space.operands.size() > kMostOperands) return false;
  const OperandView& view = launch.space.operands[operand];
  return view.dense && view.offset == 0 && launch.space.rows * launch.space.row == entries;
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
