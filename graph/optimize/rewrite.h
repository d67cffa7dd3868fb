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

// How often a graph's nodes read and write a buffer.
struct BufferUses {
  size_t reads = 0;
  size_t writes = 0;
  size_t first_write = 0;  // a node
};
std::vector<BufferUses> find_uses(const Graph& graph);

// The plan was of another program.
void drop_plan(SavedProgram& program);

// Removes the nodes that `gone` marks, then constants without readers, and unused buffers. Drops
// the plan too. REQUIRES: no remaining node, and no output, needs their results.
void remove_nodes(SavedProgram& program, const std::vector<uint8_t>& gone);

}  // namespace hetero::graph
