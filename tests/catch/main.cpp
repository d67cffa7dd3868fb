// The main function of all test programs with Catch2.

#include "tests/catch/catch.h"

int main(int argc, char** argv) { return hetero::tests::run_tests(argc, argv); }
