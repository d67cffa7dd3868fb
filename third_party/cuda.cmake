# CUDA toolkit: the cuda device. Licence: NVIDIA EULA (not distributed with hetero). Minimum version: 12.0.
#
# HETERO_CUDA=AUTO asks whether nvcc is there, ON demands it, OFF does not look. Sets HETERO_WITH_CUDA, enables the CUDA
# language, and defines the target
#   cuda_runtime  the CUDA runtime (static, so that a build with CUDA loads on a machine without a GPU) and its headers

set(HETERO_WITH_CUDA OFF)
if(NOT HETERO_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  set(_quiet ${CMAKE_MESSAGE_LOG_LEVEL})
  set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
  check_language(CUDA)
  set(CMAKE_MESSAGE_LOG_LEVEL ${_quiet})
  if(CMAKE_CUDA_COMPILER)
    set(HETERO_WITH_CUDA ON)
  elseif(HETERO_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HETERO_CUDA=ON, but nvcc was not found.")
  endif()
endif()

if(HETERO_WITH_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit 12.0 REQUIRED)
  add_library(cuda_runtime INTERFACE)
  target_link_libraries(cuda_runtime INTERFACE CUDA::cudart_static)
else()
  message(STATUS "hetero: CPU-only build (HETERO_CUDA=${HETERO_CUDA}, no CUDA device)")
endif()
