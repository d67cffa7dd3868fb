// The main function of all test programs with Catch2.

#include "tests/catch/catch.h"

// Tests fork children that make threads. ThreadSanitizer ends such a child where another thread was
// still there at the fork, such as a detached one of an earlier test.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

int main(int argc, char** argv) { return hetero::tests::run_tests(argc, argv); }
