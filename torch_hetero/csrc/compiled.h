// Captured programs in Python: the class CompiledProgram of the module _C, below
// torch_hetero/program/compiled_graph.py.

#pragma once

#include <pybind11/pybind11.h>

namespace hetero::python {

void add_compiled_program(pybind11::module_& m);

}  // namespace hetero::python
