// FileEngine: how files are read and written while the caller does something else.

#pragma once

#include <cstdint>

namespace hetero::backend {

enum class FileEngine : uint8_t {
  kAuto,     // io_uring where the system has it and allows it, else threads
  kUring,    // io_uring or an error
  kThreads,  // threads that call preadv and pwritev
};

}  // namespace hetero::backend
