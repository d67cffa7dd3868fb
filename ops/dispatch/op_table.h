// The op table: everything that is particular to one operator, a row each; op_table.def holds the rows.
//
// A typed row gives an operator a recorder and a kernel without boxing (typed.h). A class row only tells planning what kind of work it
// is. An operator without a row is recorded by the catch-all as OpClass::kOther and still works.

#pragma once

#include <torch/library.h>

namespace hetero::ops {

struct OpInfo;

// Whether calls of the operator on the device become nodes: those of a row, of the catch-all, and of the fallback, which operators reach that nobody
// takes apart. What such an operator reads, makes and writes is tensors.
bool is_recorded(const OpInfo& info);

// Notes an operator whose kernel of the device gives calls to the catch-all.
void enter_recorded(const char* name);

// Whether an operator is PyTorch's own, not a library's. Of those, kernels for all devices are compositions and nothing else.
bool is_own(const std::string& name);

// The typed rows, split over several files to compile side by side.
void add_pointwise_rows(torch::Library& library);
void add_inplace_rows(torch::Library& library);
void add_matrix_rows(torch::Library& library);
void add_network_rows(torch::Library& library);
// Random operators with kernels of our own.
void add_random_rows();

}  // namespace hetero::ops
