#include "backend/cpu/vector/instruction_set.h"

#include <fstream>

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

const std::string& processor_model() {
  static const auto* model = new std::string(read_processor_model());
  return *model;
}

}  // namespace hetero::backend
