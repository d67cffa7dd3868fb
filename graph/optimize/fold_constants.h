// fold_constants: what depends on weights only is computed once, when a program is made.
//
// A weight that is cast, transposed by a copy or looked up by constant indices gives the same bytes in every run. The nodes that make such bytes are
// run here, their results become constants, and constants that nobody reads any more go. Nodes that draw random numbers, that have side effects or are of a library that is not PyTorch, that follow from the sizes of inputs, or whose
// result takes much more memory than what it is made of, stay.
//
// Thread safety: as the program's.

#pragma once

#include "backend/base/status.h"
#include "graph/program/saved_program.h"

namespace hetero::graph {

// Errors: what a kernel raised; the program is as it was then. The plan of the program, if it had one, is dropped.
Status fold_constants(SavedProgram& program);

}  // namespace hetero::graph
