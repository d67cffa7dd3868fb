// Catch2's own code, which version 2 has in a header and version 3 in a library.

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#endif
#include "tests/catch/catch.h"

namespace hetero::tests {

int run_tests(int argc, char** argv) { return Catch::Session().run(argc, argv); }

}  // namespace hetero::tests
