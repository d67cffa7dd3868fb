// fit_sizes: finds how a program's integers follow from the sizes of its inputs, from recordings
// for several sizes.
//
// A recording is a graph of plain integers. The same model, recorded with other sizes, gives the
// same nodes with other integers. Each integer is one sum of products of the dimensions in all
// recordings. The candidates are known: torch.export names the sizes of a model's tensors
// ("tokens", "floor(height-1,2)+1"). Strides, offsets and bytes are products of these, or sums of
// two such products.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/program/saved_program.h"

namespace hetero::graph {

struct SizeSample {
  std::vector<int64_t> sizes;  // of the dimensions
  const SavedProgram* program;
};

// Where a node's attributes have numbers of eight bytes that may depend on sizes.
using FindNumbers = void (*)(const Graph& graph, const Node& node, std::vector<uint32_t>& places);

// Sets `program.sizes`. `own` are the sizes for which `program` was recorded. `factors` are the
// candidates for sums, including variables. Errors: kUsage, with a sentence that names the node, if
// the samples are not one program, or an integer is no sum of products.
Status fit_sizes(SavedProgram& program, std::vector<SizeVariable> variables, std::span<const int64_t> own,
                 std::span<const SizeSample> samples, std::span<const SizeSum> factors, FindNumbers find_numbers);

// Whether `recorded` is what program_at() makes for its sizes, except for strides on which nothing
// depends. Errors: kUsage, with the first difference.
Status compare_at(const SavedProgram& program, const SizeSample& recorded);

}  // namespace hetero::graph
