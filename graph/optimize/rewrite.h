// Removes nodes and buffers from a saved program, for passes over programs.
//
// Thread safety: as the program's.

#pragma once

#include <cstdint>
#include <vector>

#include "graph/program/saved_program.h"

namespace hetero::graph {

// Whether the node's random state is drawn in every run.
bool draws(const SavedProgram& program, const Node& node);

// Takes out the nodes that `gone` marks, and then constants that nobody reads, and buffers that
// nobody touches. The plan goes too.
// REQUIRES: no node that stays, and no output, needs what those made.
void remove_nodes(SavedProgram& program, const std::vector<uint8_t>& gone);

}  // namespace hetero::graph
