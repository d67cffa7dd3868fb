// What a user may read in Python, as functions of the module _C: counters, options, memory, the
// accelerator's figures and plans. torch_hetero/settings and torch_hetero/device give them a form.

#pragma once

#include <pybind11/pybind11.h>

namespace hetero::python {

void add_reports(pybind11::module_& m);

}  // namespace hetero::python
