// Saved programs in Python: the classes Model and GraphExecutor of the module _C.

#pragma once

#include <pybind11/pybind11.h>

namespace hetero::python {

void add_saved(pybind11::module_& m);

}  // namespace hetero::python
