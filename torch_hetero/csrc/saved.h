// Saved programs in Python: the classes Model and GraphExecutor of the module _C.

#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "graph/serve/graph_executor.h"

namespace hetero::python {

// Errors: TypeError for what is no tensor.
std::vector<at::Tensor> tensors_of(const pybind11::list& objects);
pybind11::list list_of(const std::vector<at::Tensor>& tensors);

// Whether the program writes one of its constants.
bool changes_state(const Model& model);
// Planned for this process.
std::shared_ptr<GraphExecutor> make_executor(const std::shared_ptr<Model>& model, size_t slots);

void add_saved(pybind11::module_& m);

}  // namespace hetero::python
