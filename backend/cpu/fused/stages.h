// Stages: a fused kernel with totals or checks as several kernels without either, which run in
// order.
//
//   checks  over the rows: whether the checked values hold everywhere
//   rows    the kernel's own space: all that is stored for each point or row, and the row values that later stages need
//   totals  over the rows: row values that only totals need, and the totals
//
// A stage over the rows has the rows as its entries. So it computes row values in blocks, not row
// by row. A stage passes values on in temporaries with one entry per row.

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
