// What tests reach through torch_hetero._C and nobody else should: devices and spill files that fail on demand, forced overlap, stock kernels for products.

#pragma once

#include <torch/csrc/utils/pybind.h>

void add_test_hooks(pybind11::module& m);
