# GoogleTest: the C++ tests that link torch. Licence: BSD-3-Clause. Minimum version: 1.11 (Debian package: libgtest-dev).
#
# Found as a CMake package. Defines GTest::gtest and GTest::gtest_main.

find_package(GTest QUIET)
if(NOT GTest_FOUND AND HETERO_TESTS STREQUAL "AUTO")
  message(STATUS "hetero: without GoogleTest, no C++ tests of ops/")
elseif(NOT GTest_FOUND)
  message(FATAL_ERROR "GoogleTest is missing: install the package libgtest-dev, or configure with -DHETERO_TESTS=OFF.")
endif()
