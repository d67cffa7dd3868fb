// A prepared fused kernel.

#pragma once

#include "backend/cpu/fused.h"
#include "backend/status.h"

namespace hetero::backend {

struct FusedLaunch {
  FusedKernel kernel;
  FusedSpace space;
};

Status prepare_fused(const FusedKernel& kernel, const FusedSpace& space, FusedLaunch& launch);
void run_fused(const FusedLaunch& launch, void* const* addresses, const Number* numbers);

}  // namespace hetero::backend
