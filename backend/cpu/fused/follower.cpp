#include "backend/cpu/fused/follower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace hetero::backend {
namespace {

// The program's only step; null where there are others.
const ProgramStep* only_step(const FusedProgram& program) {
  if (program.streamed || program.phases.size() != 1) return nullptr;
  const Section pieces = program.phases[0].pieces;
  return program.steps.size() == 1 && pieces.end - pieces.begin == 1 ? &program.steps[pieces.begin] : nullptr;
}

std::optional<Limits> limits_of(const ProgramStep& step, const Number* numbers) {
  const MapFormula& formula = step.map.formula;
  if (formula.type != EntryType::kFloat32 || formula.from != EntryType{}) return std::nullopt;
  const Number* const of_step = numbers + step.first_number;
  Limits limits;
  switch (formula.operation) {
    case MapOperation::kRelu:
      limits.low = 0;
      break;
    case MapOperation::kClamp:
      limits = {of_step[0].f32, of_step[1].f32};
      break;
    case MapOperation::kClampMin:
      limits.low = of_step[0].f32;
      break;
    case MapOperation::kClampMax:
      limits.high = of_step[0].f32;
      break;
    default:
      return std::nullopt;
  }
  if (std::isnan(limits.low) || std::isnan(limits.high)) return std::nullopt;
  return limits;
}

}  // namespace

bool Follower::can_follow(const FusedLaunch& launch, uint16_t operand, int64_t entries) {
  if (part_entries(launch) == 0 || launch.space.operands.size() > kMostOperands) return false;
  const OperandView& view = launch.space.operands[operand];
  return view.dense && view.offset == 0 && launch.space.rows * launch.space.row == entries;
}

std::optional<Follower::Ending> Follower::ending() const {
  const FusedProgram& program = launch_.program;
  const ProgramStep* const step = only_step(program);
  if (step == nullptr || step->kind != ProgramStep::Kind::kMap || step->row) return std::nullopt;
  const Place &from = program.places[step->in[0]], &to = program.places[step->out];
  if (from.kind != Place::Kind::kElements || from.operand != operand_ || to.kind != Place::Kind::kElements) {
    return std::nullopt;
  }
  if (wanted_ && to.operand != operand_) return std::nullopt;
  const OperandView& view = launch_.space.operands[to.operand];
  const std::optional<Limits> limits = limits_of(*step, numbers_);
  if (!view.dense || !limits) return std::nullopt;
  return Ending{*limits, static_cast<std::byte*>(operands_[to.operand]) + view.offset};
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
