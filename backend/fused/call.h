// FusedCall: a fused kernel with what it is to run on. What a device is given.
//
// Thread safety: plain data; it refers to what outlives the run.

#pragma once

#include "backend/fused/kernel.h"

namespace hetero::backend {

struct FusedLaunch;  // the kernel as it is prepared for the CPU: backend/cpu/fused/launch.h

// What a device is given to run: one of them is enough for it. `launch` is prepared for `space`.
struct FusedCall {
  const FusedKernel& kernel;
  const FusedSpace& space;
  const FusedLaunch& launch;
  void* const* operands;
  const Number* numbers;
};

}  // namespace hetero::backend
