# Catch2: the tests of the torch-free layers. Licence: BSL-1.0. Minimum version: 2.13 (Debian package: catch2).
#
# Found as a CMake package, version 2 or 3. Defines Catch2::Catch2, with version 3 also Catch2::Catch2WithMain.

find_package(Catch2 QUIET)
if(NOT TARGET Catch2::Catch2)
  # Version 2 is headers only.
  find_path(HETERO_CATCH2_INCLUDE catch2/catch.hpp)
  if(HETERO_CATCH2_INCLUDE)
    add_library(Catch2::Catch2 INTERFACE IMPORTED)
    target_include_directories(Catch2::Catch2 INTERFACE ${HETERO_CATCH2_INCLUDE})
  elseif(HETERO_TESTS STREQUAL "AUTO")
    message(STATUS "hetero: without Catch2, no C++ tests of backend/ and graph/")
  else()
    message(FATAL_ERROR "Catch2 is missing: install the package catch2, or configure with -DHETERO_TESTS=OFF.")
  endif()
endif()
