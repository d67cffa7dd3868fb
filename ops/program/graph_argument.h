// What nodes of a ComputeGraph (compute_graph.h) are given.
//
// Thread safety: values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hetero {

// A result of a node: its first one, or another, result(1) of it. Inputs and constants are nodes
// with one result.
struct GraphValue {
  uint32_t node = UINT32_MAX;
  uint32_t index = 0;
  GraphValue result(uint32_t other) const { return {node, other}; }
};

// What an operator takes: None, a tensor, tensors, a number, numbers, a string. A dtype is a
// string: "f32".
class GraphArgument {
 public:
  using Kind = std::variant<std::monostate, GraphValue, std::vector<GraphValue>, bool, int64_t, double,
                            std::vector<int64_t>, std::vector<double>, std::string>;
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
  GraphArgument(std::string value) : kind_(std::move(value)) {}
  GraphArgument(const char* value) : kind_(std::string(value)) {}
  const Kind& kind() const { return kind_; }

 private:
  Kind kind_;
};

}  // namespace hetero
