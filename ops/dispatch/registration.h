// Registration of the op table's rows (ops/table/op_table.def) and of everything else on the
// PrivateUse1 key.
//
// A typed row gives an operator a recorder and a kernel without boxing (typed.h). An operator
// without a row is recorded by the catch-all as OpClass::kOther and still works.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <vector>

#include "graph/ir/op.h"

namespace hetero::ops {

// The typed rows, split over several files to compile side by side.
void add_pointwise_rows(torch::Library& library);
void add_inplace_rows(torch::Library& library);
void add_matrix_rows(torch::Library& library);
void add_network_rows(torch::Library& library);
// Random operators with kernels of our own.
void add_random_rows();
// Sets the kernel of an operator that the catch-all records, and what goes with it: that of its row
// if the row has one of ours, otherwise the one that calls the operator.
void add_boxed_kernel(graph::OpTraits& traits);
// PyTorch's own operators, all overloads.
std::vector<c10::OperatorHandle> aten_operators();

}  // namespace hetero::ops
