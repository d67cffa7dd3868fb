# pybind11: the Python bindings. Licence: BSD-3-Clause. Minimum version: the one that torch carries.
#
# The headers come with torch, and must: two versions of pybind11 in one process cannot exchange tensors.
# Needs third_party/torch.cmake. Defines the target
#   pybind11_module  what a Python extension module links and how it is compiled

add_library(pybind11_module INTERFACE)
target_include_directories(pybind11_module SYSTEM INTERFACE ${Python3_INCLUDE_DIRS})
target_link_libraries(pybind11_module INTERFACE torch_python)
target_compile_options(pybind11_module INTERFACE -fvisibility=hidden)
