// Schedules a kernel for a space: what is computed when, and where each value is stored
// (program.h).
//
// Thread safety: may run on several threads, each with its own result.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/cpu/fused/program.h"
#include "backend/cpu/fused/space.h"

namespace hetero::backend {

// Lays out `program`. Operands of one alias class are taken to share memory, unless `pairs` is
// given: then only an operand with itself, and `pairs` gets the pairs of operands whose addresses
// must differ for the program to be right.
// REQUIRES: a legal kernel and a space that is not empty.
void make_schedule(const FusedKernel& kernel, const RowSpace& space, bool has_row_values,
                   std::vector<std::pair<uint16_t, uint16_t>>* pairs, FusedProgram& program);

}  // namespace hetero::backend
