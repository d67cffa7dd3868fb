#include "backend/cpu/vector/instruction_set.h"

#include <atomic>
#include <fstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hetero::backend {
namespace {

std::string read_processor_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string text;
  std::string line;
  // Of the first processor: vendor, family, model, name, stepping. A virtual machine's name alone
  // says little.
  while (std::getline(file, line) && !line.empty()) {
    const std::string word = line.substr(0, line.find_first_of("\t:"));
    if (word == "vendor_id" || word == "cpu family" || word == "model" || word == "model name" || word == "stepping") {
      text += line.substr(line.find(':') + 1);
    }
  }
  return text;
}

#if defined(__x86_64__)
// AVX512-FP16, which clang 14 has no name for. Processors of Intel have it since Sapphire Rapids.
bool has_float16_arithmetic() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 23 & 1) != 0;
}
#endif

std::atomic<int> preferred_bfloat16{-1};  // -1: as the processor is

}  // namespace

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

bool has_bfloat16_instructions() {
#if defined(__x86_64__)
  static const bool has = instruction_set() == InstructionSet::kAvx512 && __builtin_cpu_supports("avx512bf16");
  return has;
#else
  return false;
#endif
}

bool prefers_bfloat16_instructions() {
#if defined(__x86_64__)
  static const bool slow = __builtin_cpu_is("intel") && has_float16_arithmetic();
  const int preferred = preferred_bfloat16.load(std::memory_order_relaxed);
  return has_bfloat16_instructions() && (preferred >= 0 ? preferred == 1 : !slow);
#else
  return false;
#endif
}

void prefer_bfloat16_instructions(std::optional<bool> preferred) {
  preferred_bfloat16.store(preferred ? *preferred : -1, std::memory_order_relaxed);
}

const std::string& processor_model() {
  static const auto* model = new std::string(read_processor_model());
  return *model;
}

}  // namespace hetero::backend
