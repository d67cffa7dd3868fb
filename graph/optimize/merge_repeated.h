// merge_repeated: computes once what a program computes twice (global value numbering; C. Click,
// 1995).
//
// A layer in bfloat16 casts its input for each of its products, and each layer may compute the same
// mask again; a capture has them all. Two nodes are the same if they have the same operator,
// attributes and windows and read the same bytes. Constants of a few bytes are compared by these.
// The later node is dropped, and its readers read the first one's result, which lives longer for
// it. Some nodes stay: those that write bytes others see too, draw random numbers, have side
// effects, belong to another library than PyTorch, or make an output.
//
// Thread safety: as the program's.

#pragma once

#include "graph/program/saved_program.h"

namespace hetero::graph {

// The plan of the program, if it had one, is dropped where something changes. Returns how many
// nodes are gone.
size_t merge_repeated(SavedProgram& program);

}  // namespace hetero::graph
