// Embedding bags against their definition, and what is no bag.

#include "backend/cpu/kernels/embedding_bags.h"

#include <cstdint>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

TEST_CASE("bags are sums and means of rows, in the order of their ids") {
  for (const int64_t width : {1, 7, 64}) {
    std::vector<float> table(static_cast<size_t>(11 * width));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i * 37 % 101) / 7 - 5;
    const std::vector<int32_t> ids{10, 0, 0, 3, 7, 9}, begins{0, 0, 4, 6};
    for (const bool are_means : {false, true}) {
      std::vector<float> output(begins.size() * static_cast<size_t>(width), 77);
      const EmbeddingBags<int32_t> call{table.data(), 11, width, ids, begins, are_means, output.data()};
      REQUIRE(is_valid(call));
      run(call);
      for (int64_t bag = 0; bag < call.bags(); ++bag) {
        for (int64_t x = 0; x < width; ++x) {
          float expected = 0;
          int count = 0;
          for (int32_t i = call.begins[bag]; i < call.end_of(bag); ++i, ++count) {
            expected += table[static_cast<size_t>(ids[i] * width + x)];
          }
          if (are_means && count > 0) expected /= static_cast<float>(count);
          CHECK(output[static_cast<size_t>(bag * width + x)] == expected);
        }
      }
    }
  }
}

TEST_CASE("ids beyond the table and bags out of order are no bags") {
  const std::vector<float> table(6);
  const auto valid = [&](std::vector<int64_t> ids, std::vector<int64_t> begins) {
    return is_valid(EmbeddingBags<int64_t>{.table = table.data(), .rows = 3, .width = 2, .ids = ids, .begins = begins});
  };
  CHECK(valid({}, {}));
  CHECK(valid({}, {0, 0}));
  CHECK(valid({2, 0}, {0, 2}));
  CHECK_FALSE(valid({3}, {0}));
  CHECK_FALSE(valid({-1}, {0}));
  CHECK_FALSE(valid({int64_t{1} << 32}, {0}));
  CHECK_FALSE(valid({0, 1}, {1}));
  CHECK_FALSE(valid({0, 1}, {0, 2, 1}));
  CHECK_FALSE(valid({0, 1}, {0, 3}));
}

}  // namespace
}  // namespace hetero::backend
