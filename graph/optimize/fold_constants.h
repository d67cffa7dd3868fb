// fold_constants: computes once, when a program is made, what depends on weights only.
//
// A weight that is cast, transposed by a copy or looked up by constant indices gives the same bytes
// in every run. The nodes that make such bytes run here, and their results become constants.
// Constants without readers are dropped. Some nodes stay: those that draw random numbers, have side
// effects, belong to another library than PyTorch, follow from the sizes of inputs, or whose result
// takes much more memory than its operands.
//
// Thread safety: as the program's.

#pragma once

#include "backend/base/status.h"
#include "graph/program/saved_program.h"

namespace hetero::graph {

// Errors: what a kernel raised; the program is as it was then. The plan of the program, if it had
// one, is dropped.
Status fold_constants(SavedProgram& program);

}  // namespace hetero::graph
