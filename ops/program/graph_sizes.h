// The sizes of a ComputeGraph (compute_graph.h) that has dimensions: what arguments are for some of
// them, and for which of them the graph is recorded.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/program/dynamic_sizes.h"
#include "ops/program/graph_argument.h"

namespace hetero::ops {

// Dimensions, with the sizes of the example.
struct GraphDimensions {
  std::vector<graph::SizeVariable> variables;
  std::vector<int64_t> example;
};

// The dimensions as lines of sizes.txt (graph/program/dynamic_sizes.h).
std::string lines_of(const std::vector<graph::SizeVariable>& dimensions);

// What a size is for these sizes of the dimensions. Raises if it does not fit 64 bits, or has a
// dimension that is not there.
int64_t size_at(const GraphSize& size, std::span<const int64_t> dimensions);
std::vector<int64_t> sizes_at(const GraphSizes& sizes, std::span<const int64_t> dimensions);
// Whether the argument has a dimension in it, and what it is for these sizes. Raises as size_at.
bool has_dimension(const GraphArgument& argument);
std::vector<GraphArgument> arguments_at(const std::vector<GraphArgument>& arguments,
                                        std::span<const int64_t> dimensions);
using GraphAttributes = std::vector<std::pair<std::string, GraphArgument>>;
GraphAttributes attributes_at(const GraphAttributes& attributes, std::span<const int64_t> dimensions);

// A size within the bounds that other dimensions do not have by chance: `number` counts them.
int64_t example_size(const graph::SizeVariable& dimension, size_t number);
// Sizes to record the graph for besides the example: enough to tell sums of products apart.
std::vector<std::vector<int64_t>> sizes_to_record(const GraphDimensions& dimensions);

// Finds the sums among arguments, as text for dynamic_program.h.
class SizeFactors {
 public:
  explicit SizeFactors(const GraphDimensions& dimensions) : dimensions_(dimensions) {}
  void add(const GraphSize& size);
  void add(const GraphArgument& argument);
  // Each once; the dimensions themselves first.
  std::vector<std::string> texts() const;

 private:
  const GraphDimensions& dimensions_;
  std::vector<graph::SizeSum> sums_;
};

}  // namespace hetero::ops
