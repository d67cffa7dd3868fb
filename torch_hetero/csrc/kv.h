// The block store of keys and values (graph/transfer/block_store.h) in Python.

#pragma once

#include <pybind11/pybind11.h>

namespace hetero::python {

void add_kv(pybind11::module_& m);

}  // namespace hetero::python
