#include "backend/cpu/resize/nearest.h"

#include <algorithm>
#include <cstring>

#include "backend/base/parallel.h"

namespace hetero::backend {
namespace {

template <size_t kBytes>
void pick(std::span<const int64_t> places, const std::byte* from, std::byte* to) {
  for (const int64_t place : places) {
    std::memcpy(to, from + place * int64_t{kBytes}, kBytes);
    to += kBytes;
  }
}

}  // namespace

void resize_nearest(const NearestResize& call) {
  constexpr int64_t kBytesPerThread = 64 << 10;
  const int64_t rows = std::ssize(call.rows), columns = std::ssize(call.columns);
  const int64_t row_bytes = columns * call.pixel_bytes, input_row_bytes = call.width * call.pixel_bytes;
  const int64_t grain = std::max<int64_t>(1, kBytesPerThread / std::max<int64_t>(1, row_bytes));
  parallel_for(0, call.images * rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / rows, row = i % rows;
      std::byte* const to = call.output + i * row_bytes;
      if (i > begin && row > 0 && call.rows[row] == call.rows[row - 1]) {
        std::memcpy(to, to - row_bytes, static_cast<size_t>(row_bytes));
        continue;
      }
      const std::byte* const from = call.input + (image * call.height + call.rows[row]) * input_row_bytes;
      switch (call.pixel_bytes) {
        case 2:
          pick<2>(call.columns, from, to);
          break;
        case 4:
          pick<4>(call.columns, from, to);
          break;
        default:
          for (int64_t x = 0; x < columns; ++x) {
            std::memcpy(to + x * call.pixel_bytes, from + call.columns[x] * call.pixel_bytes,
                        static_cast<size_t>(call.pixel_bytes));
          }
      }
    }
  });
}

}  // namespace hetero::backend
