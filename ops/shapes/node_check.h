// Checks nodes that no recorder has written: those of a saved program that was read from a file.
//
// Kernels trust the bytes that a recorder encoded (call.h) and the windows that the Meta kernel
// gave. A file may hold anything, so its nodes are checked as if they were recorded. The operator
// must be one that the recorder records. The attributes are read with every bound checked, and each
// value must suit the operator's schema. Then the Meta kernel runs, and its outputs must be those
// of the node. A file's claim is no reason to run a kernel that computes. Meta kernels in Python
// are avoided, because a C++ program does not have them and importing them takes a second.
// Operators with a row only make tensors from tensors, so they are tried on zeros, or on an element
// of each operand if a rule gives the sizes.
//
// Some Meta kernels describe CUDA's kernels, while recorders have learned what the CPU's make; some
// operators have no description (CHECKS_ARGUMENTS in op_table.def). The node's outputs are believed
// if running it compares them with what its kernel made (kernel.h) and checks that its written
// arguments keep their shape (boxed.cpp). The others are refused.
//
// A saved program names its operators. The resolver finds those that PyTorch knows and this process
// has not met.
//
// Thread safety: any thread. REQUIRES that the recorder's lock is not held (a Meta kernel may be
// Python).

#pragma once

#include "backend/base/status.h"
#include "graph/ir/graph.h"

namespace hetero::ops {

// OpTraits::check and OpTraits::has_draw of all operators of PyTorch. Errors: kUsage, with what is
// wrong.
Status check_node(const graph::Graph& graph, const graph::Node& node);
bool has_draw(const graph::Graph& graph, const graph::Node& node, uint64_t place);

// OpTable's resolver.
void resolve_operator(const std::string& name);

}  // namespace hetero::ops
