// fit_sizes: finds out how a program's integers follow from the sizes of its inputs, by looking at the program for several sizes.
//
// Recording gives a graph of plain integers. The same model, recorded with other sizes, gives a graph of the same nodes with other integers, and each of
// these is one sum of products of the dimensions in all of them. Which sums come into question is known from outside: torch.export names the
// sizes that a model's tensors have ("tokens", "floor(height-1,2)+1"), and strides, offsets and bytes are products of these, or two such products added up.
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

// Where in a node's attributes numbers of eight bytes stand that may depend on sizes.
using FindNumbers = void (*)(const Graph& graph, const Node& node, std::vector<uint32_t>& places);

// Sets `program.sizes`. `own` are the sizes for which `program` was recorded, `factors` the sums that sizes are made of; variables count as such. Errors: kUsage where the samples are
// not one program, or an integer is no sum of products: a sentence that names the node.
Status fit_sizes(SavedProgram& program, std::vector<SizeVariable> variables, std::span<const int64_t> own,
                 std::span<const SizeSample> samples, std::span<const SizeSum> factors, FindNumbers find_numbers);

// Whether `recorded` is what program_at() makes for its sizes, save for strides that nothing follows. Errors: kUsage, with the first difference.
Status compare_at(const SavedProgram& program, const SizeSample& recorded);

}  // namespace hetero::graph
