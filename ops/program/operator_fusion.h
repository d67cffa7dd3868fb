// Chains of operators for which one operator of the caller's is called: what fits by the schemas.
//
// ComputeGraph::register_fusion says what a chain is; compute_graph_fusion.cpp finds chains.
//
// Thread safety: pure functions of what the dispatcher knows.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hetero::ops {

// The operator of exactly that name, with its overload if it has one: "aten::add.Tensor". None if
// there is no such operator.
std::optional<c10::OperatorHandle> find_exactly(std::string_view name);
// The same. Raises a sentence where there is none.
c10::OperatorHandle find_operator(const std::string& name);

// Raises a sentence unless `op` takes what the operators of the chain take, in their order, without
// the first argument of each but the first, which is the result of the one before; and unless each
// of them makes one tensor and neither writes nor views what it is given.
void check_fusion(const std::vector<std::string>& chain, const std::string& op);

}  // namespace hetero::ops
