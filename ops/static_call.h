// Calling a GraphExecutor (graph/serve/graph_executor.h) with PyTorch's tensors.
//
// Thread safety: as the executor's.

#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "graph/serve/graph_executor.h"

namespace hetero::ops {

// The tensor as the executor sees it. REQUIRES: it is on the CPU, and lives as long as the view is used.
TensorView view_of(const at::Tensor& tensor);

// Runs the slot: inputs that lie as the program's own are used where they are, others are copied; results are new CPU tensors, written by the program
// itself where it can. Inputs that the program updates are updated. Raises what went wrong: a kernel's own exception, or a ValueError for a wrong input.
// REQUIRES: an input for each of the executor's, on the CPU.
std::vector<at::Tensor> call(GraphExecutor& executor, const std::vector<at::Tensor>& inputs, size_t slot);

// configured_plan_options(), for programs that are known ahead of time.
graph::PlanOptions static_plan_options();

// Raises the error of a Status, as the exception of its class.
void check(const Status& status);

}  // namespace hetero::ops
