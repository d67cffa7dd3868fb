// Stage pipelines in Python: the classes StagePipeline and StageCall of the module _C, below
// torch_hetero/program/stage_pipeline.py.

#pragma once

#include <pybind11/pybind11.h>

namespace hetero::python {

void add_stage_pipeline(pybind11::module_& m);

}  // namespace hetero::python
