// Stages of a fused kernel with totals or checks: kernels without either, which run one after the other.
//
//   checks  over the rows: whether the checked values hold everywhere
//   rows    the kernel's own space: all that is stored for each point or row, and the row values that later stages need
//   totals  over the rows: what only totals need of the row values, and the totals
//
// A stage over the rows has the rows as its entries. So what is computed once for each row is computed there in blocks, and not row by row. What a
// stage passes on lies in temporaries: one entry for each row.

#pragma once

#include <vector>

#include "backend/fused/kernel.h"
#include "backend/cpu/fused/launch.h"

namespace hetero::backend {

// One kernel before it is prepared: stage.launch is empty.
struct StageKernel {
  FusedKernel kernel;
  FusedSpace space;
  FusedStage stage;
};

// REQUIRES: a legal kernel and space. Gives the bytes of the temporaries.
int64_t split_stages(const FusedKernel& kernel, const FusedSpace& space, std::vector<StageKernel>& stages);

}  // namespace hetero::backend
