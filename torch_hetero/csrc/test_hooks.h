// Hooks for tests in torch_hetero._C: devices and spill files that fail on demand, forced overlap,
// stock kernels for products.

#pragma once

#include <torch/csrc/utils/pybind.h>

void add_test_hooks(pybind11::module& m);
