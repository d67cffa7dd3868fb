// How Python calls a saved program: the classes Structure and Caller of the module _C.

#pragma once

#include <pybind11/pybind11.h>

namespace hetero::python {

void add_calling(pybind11::module_& m);

}  // namespace hetero::python
