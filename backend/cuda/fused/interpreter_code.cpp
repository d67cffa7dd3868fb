// The interpreter's machine code: nvcc's output for interpreter.cu, a file of the build that is
// embedded in the library.

#include "backend/cuda/fused/interpreter.h"

#ifdef HETERO_INTERPRETER_FILE

asm(R"(
  .pushsection .rodata
  .balign 16
hetero_interpreter_begin:
  .incbin ")" HETERO_INTERPRETER_FILE R"("
hetero_interpreter_end:
  .popsection
)");

extern "C" {
[[gnu::visibility("hidden")]] extern const char hetero_interpreter_begin[];
[[gnu::visibility("hidden")]] extern const char hetero_interpreter_end[];
}

namespace hetero::backend {

std::string_view fused_interpreter_code() {
  return {hetero_interpreter_begin, static_cast<size_t>(hetero_interpreter_end - hetero_interpreter_begin)};
}

}  // namespace hetero::backend

#else

namespace hetero::backend {

std::string_view fused_interpreter_code() { return {}; }

}  // namespace hetero::backend

#endif
