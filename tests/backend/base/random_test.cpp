#include "backend/base/random.h"

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that come with Random123, the library of the paper's authors (kat_vectors,
// philox4x32 10 rounds).
TEST_CASE("Philox gives the known answers of its authors") {
  CHECK(philox4x32({0, 0, 0, 0}, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a position of a seed is a counter of Philox") {
  CHECK(philox(7, 0x100000002) == philox4x32({2, 1, 0, 0}, 7));
  CHECK(philox(7, 1) != philox(7, 2));
  CHECK(philox(7, 1) != philox(8, 1));
}

TEST_CASE("uniform numbers lie in [0, 1) and reach both ends") {
  CHECK(uniform_double(0, 0) == 0.0);
  CHECK(uniform_double(0xffffffff, 0xffffffff) < 1.0);
}

TEST_CASE("normal numbers are finite at the ends, and have mean 0 and variance 1") {
  CHECK(std::isfinite(standard_normal(0.0, 0.0)));
  CHECK(std::isfinite(standard_normal(uniform_double(0xffffffff, 0xffffffff), 0.0)));
  double sum = 0, squares = 0;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const Words words = philox(3, static_cast<uint64_t>(i));
    const double value = standard_normal(uniform_double(words[0], words[1]), uniform_double(words[2], words[3]));
    sum += value;
    squares += value * value;
  }
  CHECK(std::abs(sum / kCount) < 0.03);
  CHECK(std::abs(squares / kCount - 1) < 0.05);
}

}  // namespace
}  // namespace hetero::backend
