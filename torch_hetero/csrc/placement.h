// Placement in Python, as functions of the module _C below torch_hetero/device/placement.py.

#pragma once

#include <pybind11/pybind11.h>

namespace hetero::python {

void add_placement(pybind11::module_& m);

}  // namespace hetero::python
