// Servers in Python: the classes Server and ServerRequest of the module _C, below
// torch_hetero/program/server.py.

#pragma once

#include <pybind11/pybind11.h>

namespace hetero::python {

void add_server(pybind11::module_& m);

}  // namespace hetero::python
