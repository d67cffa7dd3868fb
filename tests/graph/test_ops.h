// Operators for the tests of graph/: float arithmetic over any windows, with every trait that
// planning looks at.
//
// All of them compute one formula, so that a program's result depends on every operand of every
// node: element i of what is written is attribute + sum over the operands that are read, each
// element i (modulo its size) times 0.5, 0.25, ...

#pragma once

#include "graph/graph.h"

namespace hetero::graph::testing {

struct TestOps {
  OpId pointwise;    // placed by cost
  OpId matmul;       // prefers the accelerator
  OpId indexing;     // follows its data
  OpId cpu_only;     // the accelerator has no kernel
  OpId brings;       // brings its outputs' memory where it may
  OpId effect;       // has a side effect: counts its calls
  OpId throws;       // throws std::runtime_error("broken kernel")
  OpId half_throws;  // writes, then throws

  // With lowerings. Operands are broadcast as in PyTorch.
  OpId map;  // attribute + sum over the operands that are read, at most four, times 0.5, 0.25, ...
  OpId
      digest;  // a number in [0, 1) that depends on the bits of a row; dimensions that the output lacks, or has with size 1, go
  OpId normalize;  // the map of an operand and of its digest over the last dimension
  OpId copy;       // what it reads
  OpId join;       // of parts of equal sizes, along the dimension in which the output has another size
  // (bias, x) -> out: the body writes 0.5 * x, and the tail, which is the map of what is there and of the bias, has a lowering.
  // Products of one x run together.
  OpId product;

  // Writes numbers that its attributes say: a seed and an offset, eight bytes each.
  OpId random;
};

// Registers the operators on first use.
const TestOps& test_ops();

// How often the kernel of test_ops().effect has run.
int effect_count();

}  // namespace hetero::graph::testing
