// Saved programs in Python: the classes Model and GraphExecutor of the module _C.

#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace hetero::python {

// Errors: TypeError for what is no tensor.
std::vector<at::Tensor> tensors_of(const pybind11::list& objects);
pybind11::list list_of(const std::vector<at::Tensor>& tensors);

void add_saved(pybind11::module_& m);

}  // namespace hetero::python
