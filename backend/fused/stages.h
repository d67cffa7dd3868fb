// Stages: a fused kernel with totals or checks as several kernels without either, which run in
// order.
//
//   checks  over the rows: whether the checked values hold everywhere
//   rows    the kernel's own space: all that is stored for each point or row, and the row values
//           that later stages need
//   totals  over the rows: row values that only totals need, and the totals
//
// A stage over the rows has the rows as its entries. So it computes row values in blocks, not row
// by row. A stage passes values on in temporaries with one entry per row.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/fused/kernel.h"

namespace hetero::backend {

struct StageOperand {
  bool is_temporary;
  uint16_t operand;  // of the kernel
  int64_t offset;    // of a temporary
};

struct StageKernel {
  FusedKernel kernel;
  FusedSpace space;
  std::vector<StageOperand> operands;  // what it is called with
  // Temporaries of one byte; where one is 0 after this stage, no other runs.
  std::vector<int64_t> checks;
};

// REQUIRES: a legal kernel and space. Gives the bytes of the temporaries.
int64_t split_stages(const FusedKernel& kernel, const FusedSpace& space, std::vector<StageKernel>& stages);

}  // namespace hetero::backend
