// How a Status becomes the exception that the caller of an operator sees.

#pragma once

#include "backend/base/status.h"

namespace hetero::ops {

// Raises an error of running: the very exception of a kernel, where one raised it. REQUIRES:
// !status.ok().
[[noreturn]] void raise(const Status& status);

}  // namespace hetero::ops
