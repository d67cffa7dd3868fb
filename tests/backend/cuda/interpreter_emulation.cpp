#include "tests/backend/cuda/interpreter_emulation.h"

#include <cstring>

#include "tests/backend/cuda/cuda_threads.h"
// After what stands for CUDA.
#include "backend/cuda/fused/interpreter.cu"

namespace hetero::backend::testing {
namespace {

template <int kSize, typename Kernel>
void run(unsigned blocks, const uint64_t* words, Kernel kernel) {
  hetero_fused::InterpreterArguments<kInterpreterSizes[kSize].words> arguments;
  std::memcpy(&arguments, words, sizeof(arguments));
  const bool has_barriers = words[kModeWord] != static_cast<uint64_t>(InterpreterMode::kEntries);
  emulation::run(blocks, has_barriers, [&] { kernel(arguments); });
}

}  // namespace

void run_interpreter(int size, unsigned blocks, const uint64_t* words) {
  if (size == 0) {
    run<0>(blocks, words, hetero_fused::fused_interpreter_small);
  } else {
    run<1>(blocks, words, hetero_fused::fused_interpreter_large);
  }
}

}  // namespace hetero::backend::testing
