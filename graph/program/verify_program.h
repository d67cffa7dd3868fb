// verify_program: whether a program that somebody else has made may be run.
//
// Thread safety: pure functions.

#pragma once

#include "backend/base/status.h"
#include "graph/program/saved_program.h"

namespace hetero::graph {

// Whether the program may be run: the graph is legal, every value is in bounds, every buffer that
// is read is an input, a constant or made before, and every node is a call that its kernel can
// trust (OpTraits::check). Errors: kUsage, with the first violation in words.
Status verify_program(const SavedProgram& program);

}  // namespace hetero::graph
