# Catch2: the tests of the torch-free layers. Licence: BSL-1.0. Minimum version: 2.13 (Debian package: catch2).
#
# Found as a CMake package, version 2 or 3. Defines Catch2::Catch2, with version 3 also Catch2::Catch2WithMain.

find_package(Catch2 QUIET)
if(NOT Catch2_FOUND)
  message(FATAL_ERROR "Catch2 is missing: install the package catch2, or configure with -DHETERO_TESTS=OFF.")
endif()
