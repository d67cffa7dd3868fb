// Copies between dense and strided memory, entry by entry against their definition.

#include "backend/cpu/vector/strided_copy.h"

#include <cstring>
#include <vector>

#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

TEST_CASE("tiles are gathered and scattered, whatever their strides") {
  for (const int bytes : {1, 2, 4, 8, 16}) {
    for (const int64_t rows : {1, 4, 7, 16, 40}) {
      for (const int64_t columns : {1, 8, 12, 33}) {
        for (const int64_t gap : {0, 1, 5}) {
          // By columns, by rows, and by columns of which every second entry counts.
          const int64_t pitch = (2 * rows + gap) * bytes, line = (columns + gap) * bytes;
          const int64_t strides[][2] = {{bytes, pitch}, {line, bytes}, {2 * bytes, pitch}};
          for (const auto& [row_stride, column_stride] : strides) {
            INFO(bytes << " bytes, " << rows << " x " << columns << ", strides " << row_stride << ", "
                       << column_stride);
            const int64_t size = (rows - 1) * row_stride + (columns - 1) * column_stride + bytes;
            std::vector<char> strided(static_cast<size_t>(size)), scattered(strided.size(), 0x55);
            for (size_t i = 0; i < strided.size(); ++i) strided[i] = static_cast<char>(i * 37 + i / 251);
            std::vector<char> dense(static_cast<size_t>(rows * columns * bytes) + 1, 0x11), expected(dense);
            std::vector<char> expected_strided(scattered);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t c = 0; c < columns; ++c) {
                const char* const from = strided.data() + r * row_stride + c * column_stride;
                std::memcpy(expected.data() + (r * columns + c) * bytes, from, static_cast<size_t>(bytes));
                std::memcpy(expected_strided.data() + (from - strided.data()), from, static_cast<size_t>(bytes));
              }
            }
            gather_tile(dense.data(), strided.data(), rows, row_stride, columns, column_stride, bytes);
            REQUIRE(dense == expected);
            scatter_tile(dense.data(), scattered.data(), rows, row_stride, columns, column_stride, bytes);
            REQUIRE(scattered == expected_strided);
          }
        }
      }
    }
  }
}

TEST_CASE("lines become columns, with room between both") {
  for (const int bytes : {1, 2, 4, 8, 16}) {
    for (const int64_t rows : {1, 5, 16, 40}) {
      for (const int64_t columns : {1, 4, 19, 32}) {
        const int64_t from_stride = (columns + 3) * bytes, to_stride = (rows + 1) * bytes;
        std::vector<char> from(static_cast<size_t>(rows * from_stride)), expected;
        for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 37 + i / 251);
        std::vector<char> to(static_cast<size_t>(columns * to_stride), 0x55);
        expected = to;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < columns; ++c) {
            std::memcpy(&expected[static_cast<size_t>(c * to_stride + r * bytes)],
                        &from[static_cast<size_t>(r * from_stride + c * bytes)], static_cast<size_t>(bytes));
          }
        }
        transpose(from.data(), from_stride, rows, columns, to.data(), to_stride, bytes);
        CAPTURE(bytes, rows, columns);
        CHECK(to == expected);
      }
    }
  }
}

}  // namespace
}  // namespace hetero::backend
