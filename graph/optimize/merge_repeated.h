// merge_repeated: what a program computes twice is computed once.
//
// A layer that runs in bfloat16 casts its input for each of its products, a mask is made anew in each layer, and a capture has them all. Two nodes are
// the same when they have the same operator, attributes and windows and read the same bytes (global value numbering; C. Click, 1995); constants of a few bytes
// are compared by these. The later one goes, and who reads what it made reads what the first one has made, which lives longer for it. Nodes stay that write
// what others see too, draw random numbers, have side effects, or are of a library that is not PyTorch; and those that make an output.
//
// Thread safety: as the program's.

#pragma once

#include "graph/program/saved_program.h"

namespace hetero::graph {

// The plan of the program, if it had one, is dropped where something changes. Returns how many nodes are gone.
size_t merge_repeated(SavedProgram& program);

}  // namespace hetero::graph
