// Lowering: how one node computes its outputs inside a fused kernel, as the operator's owner
// describes it.
//
// Planning asks the operator (OpTraits::lower) for a small program over the node's operands: casts,
// maps, reductions, and the value that becomes each output. The fusion pass (plan/fusion.cpp) joins
// the programs of a group's nodes into one FusedKernel. The stock kernel does the same arithmetic
// when a node runs alone. For maps the two must agree to the last bit.
//
//   pointwise node:  the space is the output's sizes; operands are broadcast to it from the right,
//                    as in PyTorch
//   reduction:       the space is the sizes of operand `space`; `reduced` says which of its
//                    dimensions are a row that may be reduced. Operands are broadcast to it, or to
//                    the dimensions that stay (row_operand), such as the indices of a cross entropy
//   pieces:          a pointwise node whose output is cut along one dimension into parts of equal
//                    size, each with a program of its own (cut_into); operands are broadcast to the
//                    output or to a part. The parts of a concatenation, for example
//   tail:            a pointwise node that reads its own output, as the operator's body has left it
//                    (OpTraits::has_tail)
//
// A fused kernel cannot raise, so the lowering has checks. If one fails, the group's members run
// one by one, and the stock kernel raises.
//
// `lower` returns false for a call that cannot be fused (a dtype, a mode), and may leave half a
// program behind. The same call with other numbers or sizes must give the same program, with other
// entries in `numbers` only.
//
// Thread safety: a Lowering belongs to one thread; it keeps its memory from node to node.

#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "backend/fused/kernel.h"
#include "graph/ir/graph.h"

namespace hetero::graph {

struct LowerRequest {
  const Node* node;
  const Operand* operands;
  const std::byte* attributes;  // of the node
  const WindowTable* windows;
  const OpTraits* traits;

  const Window& window(int operand) const { return (*windows)[operands[operand].window]; }
};
inline LowerRequest request_of(const Graph& graph, const Node& node) {
  return {.node = &node,
          .operands = graph.operands_of(node),
          .attributes = graph.attributes.data() + node.attribute_offset,
          .windows = graph.windows,
          .traits = &op_table()[node.op]};
}

class Lowering {
 public:
  using Ref = int16_t;  // a value of this node's program: an index into `values`

  struct Value {
    enum class Kind : uint8_t {
      kOperand,
      kRowOperand,
      kPieceOperand,
      kNumber,
      kMap,
      kReduce,
      kPick,
      kLookUp,
      kOneHot,
      kTotal
    };
    Kind kind;
    DType dtype;
    uint8_t input_count = 0;
    uint8_t number_count = 0;
    uint16_t operand = 0;       // kOperand, kRowOperand, kPieceOperand, kLookUp: of the node
    uint16_t first_number = 0;  // kNumber, kMap: in `numbers`
    Ref inputs[4] = {};
    backend::MapFunction map = nullptr;
    backend::MapFunction row_map = nullptr;  // see FusedStep
    const backend::Reducer* reducer = nullptr;
  };
  struct Output {
    uint16_t operand;  // of the node: the one that is written
    Ref value;         // of the dtype of the operand's window
    int piece = 0;     // which is written; of a node of one piece all of it
  };

  void clear() {
    values.clear();
    numbers.clear();
    outputs.clear();
    checks.clear();
    reduced = 0;
    beside = 0;
    space = 0;
    cut = 0;
    pieces = 1;
    refusal = nullptr;
  }

  // The node's operand as it lies in memory, in the dtype of its window.
  Ref operand(int index, DType dtype) {
    values.push_back({.kind = Value::Kind::kOperand, .dtype = dtype, .operand = static_cast<uint16_t>(index)});
    return last();
  }
  // An operand with one entry for each row: it is broadcast, from the right, to the dimensions that
  // are not reduced. In a node that reduces nothing, to those that are not among `beside`.
  Ref row_operand(int index, DType dtype) {
    values.push_back({.kind = Value::Kind::kRowOperand, .dtype = dtype, .operand = static_cast<uint16_t>(index)});
    return last();
  }
  // An operand that is broadcast to one piece. If a piece has size 1 along the cut, the operand may
  // lack that dimension.
  Ref piece_operand(int index, DType dtype) {
    values.push_back({.kind = Value::Kind::kPieceOperand, .dtype = dtype, .operand = static_cast<uint16_t>(index)});
    return last();
  }
  // REQUIRES: the output's size in `dimension` is a multiple of `count`.
  void cut_into(int count, int dimension) {
    pieces = count;
    cut = dimension;
  }
  // One number for every point, already in the bytes of `dtype`.
  Ref number(DType dtype, backend::Number value) {
    values.push_back({.kind = Value::Kind::kNumber, .dtype = dtype, .number_count = 1, .first_number = put({value})});
    return last();
  }
  Ref map(backend::MapFunction function, DType result, std::initializer_list<Ref> inputs,
          std::initializer_list<backend::Number> with = {}, backend::MapFunction row_function = nullptr) {
    Value value{.kind = Value::Kind::kMap,
                .dtype = result,
                .input_count = static_cast<uint8_t>(inputs.size()),
                .number_count = static_cast<uint8_t>(with.size()),
                .first_number = put(with),
                .map = function,
                .row_map = row_function};
    int i = 0;
    for (const Ref input : inputs) value.inputs[i++] = input;
    values.push_back(value);
    return last();
  }
  // REQUIRES: `reduced` is set; reducers with a parameter: see below.
  Ref reduce(const backend::Reducer* reducer, DType result, Ref input) {
    Value value{.kind = Value::Kind::kReduce, .dtype = result, .input_count = 1, .reducer = reducer};
    value.inputs[0] = input;
    values.push_back(value);
    return last();
  }
  // The parameter is a row value.
  Ref reduce(const backend::Reducer* reducer, DType result, Ref input, Ref parameter) {
    const Ref made = reduce(reducer, result, input);
    values.back().input_count = 2;
    values.back().inputs[1] = parameter;
    return made;
  }
  // The row's entry of `value` at `index`, an int64 row value. Undefined if the row has no such
  // index.
  Ref pick(Ref value, Ref index) { return indexed(Value::Kind::kPick, value, index); }
  // The row of a table at `index`, an int64 row value that is checked to be one of its rows. The
  // table has two dimensions, and its rows are as long as those of the space, of which only the
  // last dimension is reduced.
  Ref look_up(int table, DType dtype, Ref index) {
    Value made{.kind = Value::Kind::kLookUp, .dtype = dtype, .input_count = 1, .operand = static_cast<uint16_t>(table)};
    made.inputs[0] = index;
    values.push_back(made);
    return last();
  }
  // The row value `value` at `index`, an int64 row value; zeros elsewhere.
  Ref one_hot(Ref value, Ref index) { return indexed(Value::Kind::kOneHot, value, index); }
  // One entry for the node: a reduction of a row value over all rows. Maps of totals are totals.
  Ref total(const backend::Reducer* reducer, DType result, Ref input) {
    const Ref made = reduce(reducer, result, input);
    values.back().kind = Value::Kind::kTotal;
    return made;
  }
  // `condition`, a bool for each row, is computed by maps from row operands and numbers.
  void check(Ref condition) { checks.push_back(condition); }
  void output(int operand, Ref value, int piece = 0) {
    outputs.push_back({static_cast<uint16_t>(operand), value, piece});
  }

  // Whether the program of a pointwise node reads or writes this operand.
  bool touches(int index) const {
    const auto operand = static_cast<uint16_t>(index);
    return std::ranges::any_of(outputs, [=](const Output& output) { return output.operand == operand; }) ||
           std::ranges::any_of(values, [=](const Value& value) {
             const bool reads = value.kind == Value::Kind::kOperand || value.kind == Value::Kind::kRowOperand;
             return reads && value.operand == operand;
           });
  }

  std::vector<Value> values;
  std::vector<backend::Number> numbers;
  std::vector<Output> outputs;
  std::vector<Ref> checks;
  int space = 0;  // of a reduction: the operand whose sizes are the space
  // Which dimensions of that operand are reduced (bit i is dimension i); 0 for a pointwise node. A
  // reduced output has these dimensions with size 1, or not at all.
  uint64_t reduced = 0;
  // In a pointwise node: the last dimensions of the output, which row operands lack.
  uint64_t beside = 0;
  int cut = 0;  // the dimension of the output along which there are pieces
  int pieces = 1;
  // The dimensions that row operands lack.
  uint64_t lacked() const { return reduced != 0 ? reduced : beside; }
  const char* refusal = nullptr;  // where `lower` has returned false: why, a literal; or null

 private:
  Ref indexed(Value::Kind kind, Ref value, Ref index) {
    Value made{.kind = kind, .dtype = values[static_cast<size_t>(value)].dtype, .input_count = 2};
    made.inputs[0] = value;
    made.inputs[1] = index;
    values.push_back(made);
    return last();
  }
  Ref last() const { return static_cast<Ref>(values.size() - 1); }
  uint16_t put(std::initializer_list<backend::Number> with) {
    const auto first = static_cast<uint16_t>(numbers.size());
    numbers.insert(numbers.end(), with);
    return first;
  }
};

}  // namespace hetero::graph
