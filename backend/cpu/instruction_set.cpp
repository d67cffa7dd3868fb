#include "backend/cpu/instruction_set.h"

namespace hetero::backend {

const char* to_string(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "?";
}

InstructionSet instruction_set() {
#if defined(__x86_64__)
  static const InstructionSet best = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
      return InstructionSet::kPortable;
    }
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return avx512 ? InstructionSet::kAvx512 : InstructionSet::kAvx2;
  }();
  return best;
#else
  return InstructionSet::kPortable;
#endif
}

}  // namespace hetero::backend
