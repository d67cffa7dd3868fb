#include "backend/base/thread_block.h"

namespace hetero::backend {
namespace {

constinit thread_local ThreadBlock block;

}  // namespace

ThreadBlock& thread_block() noexcept { return block; }

}  // namespace hetero::backend
