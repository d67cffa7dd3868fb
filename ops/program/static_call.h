// Calls a GraphExecutor (graph/serve/graph_executor.h) with PyTorch's tensors.
//
// Thread safety: as the executor's.

#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "graph/ir/plan_options.h"
#include "graph/serve/graph_executor.h"

namespace hetero::ops {

// The tensor as the executor sees it. REQUIRES: it is on the CPU, and lives as long as the view is
// used.
TensorView view_of(const at::Tensor& tensor);

// Runs the slot: inputs that lie as the program's own are used where they are, others are copied;
// results are new CPU tensors, written by the program itself where it can. Inputs that the program
// updates are updated. A program with dimensions takes the sizes of its inputs. Raises what went
// wrong: a kernel's own exception, or a ValueError for a wrong input. REQUIRES: an input for each
// of the executor's, on the CPU.
std::vector<at::Tensor> call(GraphExecutor& executor, const std::vector<at::Tensor>& inputs, size_t slot);

// A new CPU tensor for a result of the program, which lies as the program's own does; to be marked
// when the program has written it.
at::Tensor empty_output(const TensorShape& shape);
// Sets the bits by which the tensor is the conjugate or the negative of what is in memory.
void mark_output(const graph::SavedProgram& program, size_t output, const at::Tensor& tensor);

// configured_plan_options(), for programs that are known ahead of time.
graph::PlanOptions static_plan_options();

// Of an executor that plans so, and draws from the device's generator.
GraphExecutor::Options executor_options(graph::PlanOptions plan);

// Raises the error of a Status, as the exception of its class.
void check(const Status& status);

}  // namespace hetero::ops
