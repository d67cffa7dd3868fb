// Catch2, and the one place that knows which major version of it the tests are compiled with.

#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
using Catch::Approx;  // global in version 2
#else
#include <catch2/catch.hpp>
#endif

namespace hetero::tests {

// Runs the program's test cases as the command line says, and returns the status of the process.
int run_tests(int argc, char** argv);

}  // namespace hetero::tests
