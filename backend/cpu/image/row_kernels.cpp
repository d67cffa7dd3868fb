#include "backend/cpu/image/row_kernels.h"

#include <atomic>

#include "backend/cpu/vector/instruction_set.h"

namespace hetero::backend {
namespace {

std::atomic<bool> portable_only{false};

}  // namespace

const RowKernels& row_kernels() {
  static constexpr RowKernels kPortable{};
#if defined(__x86_64__)
  static const bool has_avx2 = instruction_set() >= InstructionSet::kAvx2;
  if (has_avx2 && !portable_only.load(std::memory_order_relaxed)) return row_kernels_avx2();
#endif
  return kPortable;
}

void use_portable_rows(bool portable) { portable_only.store(portable, std::memory_order_relaxed); }

}  // namespace hetero::backend
