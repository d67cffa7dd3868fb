# PyTorch: tensors, dispatcher, CPU kernels. Licence: BSD-3-Clause. Minimum version: 2.11.
#
# Found by asking the Python interpreter, not by find_package(Torch): the config of a CUDA build of torch demands a CUDA
# toolkit, and nothing here needs one. Defines two targets:
#   torch         ATen, c10 and the dispatcher (libtorch_cpu, libc10)
#   torch_python  torch plus its Python layer (libtorch_python)
# and the variables HETERO_TORCH_VERSION (as torch prints it) and HETERO_TORCH_DIR (the folder of the package).

execute_process(
  COMMAND ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python3_EXECUTABLE} -c
          "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI), sep=';')"
  OUTPUT_VARIABLE _torch_facts
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE _torch_result)
if(NOT _torch_result EQUAL 0)
  message(FATAL_ERROR "${Python3_EXECUTABLE} cannot import torch; install torch 2.11 there, or build with HETERO_TORCH=OFF.")
endif()
list(GET _torch_facts 0 HETERO_TORCH_DIR)
list(GET _torch_facts 1 HETERO_TORCH_VERSION)
list(GET _torch_facts 2 _torch_cxx11_abi)
if(HETERO_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "hetero needs torch 2.11 or newer; ${Python3_EXECUTABLE} has torch ${HETERO_TORCH_VERSION}.")
endif()

# Another torch in the same place asks for a new configuration.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${HETERO_TORCH_DIR}/version.py)

add_library(torch INTERFACE)
target_include_directories(torch SYSTEM INTERFACE ${HETERO_TORCH_DIR}/include
                                                  ${HETERO_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${_torch_cxx11_abi})
# A CUDA build of libtorch_cpu refers to CUDA libraries that only its own RPATH finds.
target_link_options(torch INTERFACE -Wl,--allow-shlib-undefined)
# libtorch has the shared C++ library. A compiler that finds only the static one would add a second, between which exceptions and
# streams break.
target_link_libraries(torch INTERFACE -l:libstdc++.so.6)
target_link_libraries(torch INTERFACE ${HETERO_TORCH_DIR}/lib/libtorch_cpu.so ${HETERO_TORCH_DIR}/lib/libc10.so)

add_library(torch_python INTERFACE)
target_link_libraries(torch_python INTERFACE torch ${HETERO_TORCH_DIR}/lib/libtorch_python.so)

message(STATUS "torch ${HETERO_TORCH_VERSION} in ${HETERO_TORCH_DIR}")
