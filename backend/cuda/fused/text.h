// The head of each generated CUDA kernel as text: formulas.h and threads.h, which CMake copies into
// a source file.

#pragma once

namespace hetero::backend {

extern const char* const kFusedHead;

}  // namespace hetero::backend
