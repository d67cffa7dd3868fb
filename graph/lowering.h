// Lowering: how one node computes its outputs inside a fused kernel, as the operator's owner describes it.
//
// Planning asks the operator (OpTraits::lower) for a small program over the node's operands: casts, maps, reductions, and which value
// becomes which output. The fusion pass (passes/fusion.cpp) joins the programs of a group's nodes into one FusedKernel. A node that is run alone
// would call the same arithmetic in the stock kernel; for maps the two must agree to the last bit.
//
//   pointwise node:  the space is the output's sizes; operands are broadcast to it from the right, as in PyTorch
//   reduction:       the space is the first operand's sizes; `reduced` says which of its dimensions go
//
// `lower` returns false where this call cannot be fused (a dtype, a mode); it may leave half a program behind then.
// The same call with other numbers or sizes must give the same program, with other entries in `numbers` only.
//
// Thread safety: a Lowering belongs to one thread; it keeps its memory from node to node.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "backend/cpu/fused.h"
#include "graph/graph.h"

namespace hetero::graph {

struct LowerRequest {
  const Node* node;
  const Operand* operands;
  const std::byte* attributes;  // of the node
  const WindowTable* windows;
  const OpTraits* traits;

  const Window& window(int operand) const { return (*windows)[operands[operand].window]; }
};

class Lowering {
 public:
  using Ref = int16_t;  // a value of this node's program: an index into `values`

  struct Value {
    enum class Kind : uint8_t { kOperand, kNumber, kMap, kReduce };
    Kind kind;
    DType dtype;
    uint8_t input_count = 0;
    uint8_t number_count = 0;
    uint16_t operand = 0;       // kOperand: of the node
    uint16_t first_number = 0;  // kNumber, kMap: in `numbers`
    Ref inputs[4] = {};
    backend::MapFunction map = nullptr;
    const backend::Reducer* reducer = nullptr;
  };
  struct Output {
    uint16_t operand;  // of the node: the one that is written
    Ref value;         // of the dtype of the operand's window
  };

  void clear() {
    values.clear();
    numbers.clear();
    outputs.clear();
    reduced = 0;
  }

  // The node's operand as it lies in memory, in the dtype of its window.
  Ref operand(int index, DType dtype) {
    values.push_back({.kind = Value::Kind::kOperand, .dtype = dtype, .operand = static_cast<uint16_t>(index)});
    return last();
  }
  // One number for every point, already in the bytes of `dtype`.
  Ref number(DType dtype, backend::Number value) {
    values.push_back({.kind = Value::Kind::kNumber, .dtype = dtype, .number_count = 1, .first_number = put({value})});
    return last();
  }
  Ref map(backend::MapFunction function, DType result, std::initializer_list<Ref> inputs,
          std::initializer_list<backend::Number> with = {}) {
    Value value{.kind = Value::Kind::kMap,
                .dtype = result,
                .input_count = static_cast<uint8_t>(inputs.size()),
                .number_count = static_cast<uint8_t>(with.size()),
                .first_number = put(with),
                .map = function};
    int i = 0;
    for (const Ref input : inputs) value.inputs[i++] = input;
    values.push_back(value);
    return last();
  }
  // REQUIRES: `reduced` is set.
  Ref reduce(const backend::Reducer* reducer, DType result, Ref input) {
    Value value{.kind = Value::Kind::kReduce, .dtype = result, .input_count = 1, .reducer = reducer};
    value.inputs[0] = input;
    values.push_back(value);
    return last();
  }
  void output(int operand, Ref value) { outputs.push_back({static_cast<uint16_t>(operand), value}); }

  std::vector<Value> values;
  std::vector<backend::Number> numbers;
  std::vector<Output> outputs;
  // Which dimensions of the first operand are reduced (bit i is dimension i); 0 for a pointwise node. A reduced output has these dimensions with
  // size 1, or not at all.
  uint64_t reduced = 0;

 private:
  Ref last() const { return static_cast<Ref>(values.size() - 1); }
  uint16_t put(std::initializer_list<backend::Number> with) {
    const auto first = static_cast<uint16_t>(numbers.size());
    numbers.insert(numbers.end(), with);
    return first;
  }
};

}  // namespace hetero::graph
