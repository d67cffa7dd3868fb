// The precompiled interpreter of fused kernels (backend/cuda/fused/interpreter.cu), compiled as
// plain C++, for cuda_emulation.h.

#pragma once

#include <cstdint>

namespace hetero::backend::testing {

// Runs the kernel of kInterpreterSizes[size]. `words`: its parameter, whole.
void run_interpreter(int size, unsigned blocks, const uint64_t* words);

}  // namespace hetero::backend::testing
