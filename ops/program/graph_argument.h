// What nodes of a ComputeGraph (compute_graph.h) are given.
//
// Thread safety: values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/program/dynamic_sizes.h"

namespace hetero {

// A result of a node: its first one, or another, result(1) of it. Inputs and constants are nodes
// with one result.
struct GraphValue {
  uint32_t node = UINT32_MAX;
  uint32_t index = 0;
  GraphValue result(uint32_t other) const { return {node, other}; }
};

// A size that may depend on the graph's dimensions: a sum of products of them, such as
// 2 * batch * tokens + 1. Also where an operator takes an integer.
class GraphSize {
 public:
  GraphSize() = default;  // 0
  GraphSize(int value) : GraphSize(int64_t{value}) {}
  GraphSize(int64_t value) {
    if (value != 0) sum_ = {{value, {}}};
  }
  // One that ComputeGraph::dimension() has made.
  static GraphSize of_dimension(uint16_t number) { return GraphSize(graph::SizeSum{{1, {number}}}); }

  friend GraphSize operator*(const GraphSize& a, const GraphSize& b) {
    return GraphSize(graph::multiplied(a.sum_, b.sum_));
  }
  friend GraphSize operator+(const GraphSize& a, const GraphSize& b) { return a.plus(1, b); }
  friend GraphSize operator-(const GraphSize& a, const GraphSize& b) { return a.plus(-1, b); }

  const graph::SizeSum& sum() const { return sum_; }

 private:
  explicit GraphSize(graph::SizeSum sum) : sum_(std::move(sum)) {}
  GraphSize plus(int64_t factor, const GraphSize& other) const {
    GraphSize made = *this;
    graph::add(made.sum_, factor, other.sum_);
    return made;
  }

  graph::SizeSum sum_;
};

// Several of them, or integers.
class GraphSizes {
 public:
  GraphSizes(std::initializer_list<GraphSize> sizes) : sizes_(sizes) {}
  GraphSizes(std::vector<GraphSize> sizes) : sizes_(std::move(sizes)) {}
  GraphSizes(const std::vector<int64_t>& sizes) : sizes_(sizes.begin(), sizes.end()) {}
  const std::vector<GraphSize>& list() const { return sizes_; }

 private:
  std::vector<GraphSize> sizes_;
};

// What an operator takes: None, a tensor, tensors, a number, numbers, a string. A dtype is a
// string: "f32".
class GraphArgument {
 public:
  using Kind = std::variant<std::monostate, GraphValue, std::vector<GraphValue>, bool, int64_t, double,
                            std::vector<int64_t>, std::vector<double>, std::string, GraphSize, GraphSizes>;
  GraphArgument() = default;
  GraphArgument(std::nullptr_t) {}
  GraphArgument(GraphValue value) : kind_(value) {}
  GraphArgument(std::vector<GraphValue> values) : kind_(std::move(values)) {}
  GraphArgument(bool value) : kind_(value) {}
  GraphArgument(int value) : kind_(int64_t{value}) {}
  GraphArgument(int64_t value) : kind_(value) {}
  GraphArgument(double value) : kind_(value) {}
  GraphArgument(std::vector<int64_t> values) : kind_(std::move(values)) {}
  GraphArgument(std::vector<double> values) : kind_(std::move(values)) {}
  GraphArgument(GraphSize value) : kind_(std::move(value)) {}
  GraphArgument(GraphSizes values) : kind_(std::move(values)) {}
  GraphArgument(std::string value) : kind_(std::move(value)) {}
  GraphArgument(const char* value) : kind_(std::string(value)) {}
  const Kind& kind() const { return kind_; }

 private:
  Kind kind_;
};

}  // namespace hetero
