// Checking nodes that no recorder has written: those of a saved program that was read from a file.
//
// Kernels trust the bytes that a recorder encoded (call.h) and the windows that the Meta kernel gave. A file may hold anything, so its nodes are checked
// as if they were recorded: the operator must be one that the recorder records; the attributes are read with every bound looked at and each value must be one that the
// operator's schema asks for; then the Meta kernel is run, and its outputs must be those of the node. What a file says is no reason to run a kernel that computes. Meta
// kernels of Python, which a C++ program does not have and which take a second to import, are avoided: operators with a row (they make tensors from
// tensors, and do nothing else) are tried on zeros, or on an element of each operand where a rule gives the sizes.
//
// Some Meta kernels describe CUDA's kernels, and recorders have learned from the CPU's what those make; some operators nobody describes
// (described_in_python.h). Such outputs are taken as the node has them where running the node compares them with what its kernel has made (kernel.h) and
// sees that what it writes keeps its shape (boxed.cpp); the others are refused.
//
// A saved program names its operators; the resolver finds those that PyTorch knows and the device has not met in this process.
//
// Thread safety: any thread. REQUIRES that the recorder's lock is not held (a Meta kernel may be Python).

#pragma once

#include "backend/base/status.h"
#include "graph/ir/graph.h"

namespace hetero::ops {

// OpTraits::check and OpTraits::has_draw of all operators of PyTorch. Errors: kUsage, with what is wrong.
Status check_node(const graph::Graph& graph, const graph::Node& node);
bool has_draw(const graph::Graph& graph, const graph::Node& node, uint64_t place);

// OpTable's resolver.
void resolve_operator(const std::string& name);

}  // namespace hetero::ops
