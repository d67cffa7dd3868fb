// A saved program with two dimensions, a and b, made of recordings for several sizes as ops/ makes them; and what it computes.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "graph/serve/fit_sizes.h"
#include "graph/serve/saved_program.h"
#include "tests/graph/program.h"

namespace hetero::graph::testing {

// One recording: rows of floats with broadcasts, views of every second column and of all but the first, a reduction, an update in place, a state that is counted on, and
// a kernel whose arguments follow from the sizes. With `partly`, a part of a buffer is written too: then plans cannot be resized. REQUIRES: a >= 1, b >= 2.
struct DynamicRecording {
  DynamicRecording(int64_t a, int64_t b, bool partly = true);
  std::unique_ptr<SavedProgram> saved() const;

  Program program;
  BufferId state, weight;
};

// Where the arguments of those nodes stand that have any of eight bytes.
void find_test_numbers(const Graph& graph, const Node& node, std::vector<uint32_t>& places);
// Dimensions a and b and what else the recording's sizes need.
std::vector<SizeVariable> dynamic_variables();
// Recorded for these sizes, with others as samples. Throws where it cannot be.
std::unique_ptr<SavedProgram> make_dynamic(int64_t a = 3, int64_t b = 8, bool partly = true);

}  // namespace hetero::graph::testing
