#include "backend/cpu/fused_launch.h"

#include <cstddef>
#include <cstring>

namespace hetero::backend {

Status prepare_fused(const FusedKernel& kernel, const FusedSpace& space, FusedLaunch& launch) {
  launch.kernel = kernel;
  launch.space = space;
  return Status();
}

void run_fused(const FusedLaunch& launch, void* const* addresses, const Number* numbers) {
  const FusedKernel& kernel = launch.kernel;
  const FusedSpace& space = launch.space;
  const int outer = space.row_rank == 0 ? 0 : space.rank - space.row_rank;
  int64_t rows = 1;
  int64_t row = 1;
  for (int d = 0; d < space.rank; ++d) (d < outer ? rows : row) *= space.sizes[d];
  std::vector<std::vector<std::byte>> values(kernel.values.size());
  const auto at = [&](uint16_t operand, int64_t r, int64_t i) {
    const FusedOperand& o = space.operands[operand];
    int64_t position = o.offset;
    for (int d = space.rank; d-- > 0;) {
      int64_t& index = d < outer ? r : i;
      position += index % space.sizes[d] * o.strides[d];
      index /= space.sizes[d];
    }
    return static_cast<std::byte*>(addresses[operand]) + position;
  };
  for (int64_t r = 0; r < rows; ++r) {
    for (const FusedStep& step : kernel.steps) {
      const FusedValue& value = kernel.values[step.value];
      std::vector<std::byte>& bytes = values[step.value];
      const int64_t n = value.extent == Extent::kRow ? 1 : row;
      const size_t entry = value.bytes;
      if (step.kind != FusedStep::Kind::kStore) bytes.resize(static_cast<size_t>(n) * entry);
      const void* in[4] = {};
      std::vector<std::byte> repeated[4];
      for (int k = 0; k < step.input_count; ++k) {
        const FusedValue& input = kernel.values[step.inputs[k]];
        in[k] = values[step.inputs[k]].data();
        if (step.kind != FusedStep::Kind::kMap || input.extent == value.extent) continue;
        repeated[k].resize(static_cast<size_t>(n) * input.bytes);
        for (int64_t i = 0; i < n; ++i) {
          std::memcpy(repeated[k].data() + static_cast<size_t>(i) * input.bytes, in[k], input.bytes);
        }
        in[k] = repeated[k].data();
      }
      switch (step.kind) {
        case FusedStep::Kind::kLoad:
          for (int64_t i = 0; i < n; ++i) {
            std::memcpy(bytes.data() + static_cast<size_t>(i) * entry, at(step.operand, r, i), entry);
          }
          break;
        case FusedStep::Kind::kStore:
          for (int64_t i = 0; i < n; ++i) {
            std::memcpy(at(step.operand, r, i), bytes.data() + static_cast<size_t>(i) * entry, entry);
          }
          break;
        case FusedStep::Kind::kFill:
          for (int64_t i = 0; i < n; ++i) {
            std::memcpy(bytes.data() + static_cast<size_t>(i) * entry, &numbers[step.first_number], entry);
          }
          break;
        case FusedStep::Kind::kMap:
          step.map(bytes.data(), in, numbers + step.first_number, n);
          break;
        case FusedStep::Kind::kReduce: {
          alignas(64) std::byte state[kMaxReducerState];
          step.reducer->begin(state);
          step.reducer->add(state, in[0], row, 0);
          step.reducer->finish(state, bytes.data());
          break;
        }
      }
    }
  }
}

}  // namespace hetero::backend
