#include "backend/cpu/convolution/patches.h"

#include <algorithm>
#include <cstring>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// A weight of so many bytes stays in a thread's second-level cache while it meets blocks of rows.
constexpr int64_t kSmallWeight = 1 << 20;
// The bytes of such a block, and of rows that meet a larger weight together.
constexpr int64_t kBlockBytes = 192 << 10;
constexpr int64_t kMostBytes = 4 << 20;
// Products of fewer rows are not efficient.
constexpr int64_t kFewestRows = 48;
constexpr int64_t kBytesPerThread = 32 << 10;

}  // namespace

void gather_patches(const ConvolutionGeometry& g, int64_t element_bytes, const void* input, int64_t first,
                    int64_t count, void* rows, int64_t row_bytes) {
  const int64_t pixel = g.channels * element_bytes, line = g.kernel_width * pixel;
  const int64_t width = g.out_width(), positions = g.positions();
  for (int64_t row = first; row < first + count; ++row) {
    auto* to = static_cast<std::byte*>(rows) + (row - first) * row_bytes;
    const int64_t image = row / positions, top = row % positions / width * g.stride_y - g.padding_y;
    const int64_t left = row % width * g.stride_x - g.padding_x;
    for (int64_t ky = 0; ky < g.kernel_height; ++ky, to += line) {
      const int64_t y = top + ky * g.dilation_y;
      if (y < 0 || y >= g.height) {
        std::memset(to, 0, static_cast<size_t>(line));
        continue;
      }
      const auto* const from = static_cast<const std::byte*>(input) + (image * g.height + y) * g.width * pixel;
      if (g.dilation_x == 1) {
        const int64_t begin = std::clamp<int64_t>(-left, 0, g.kernel_width);
        const int64_t end = std::clamp<int64_t>(g.width - left, begin, g.kernel_width);
        std::memset(to, 0, static_cast<size_t>(begin * pixel));
        if (begin < end)
          std::memcpy(to + begin * pixel, from + (left + begin) * pixel, static_cast<size_t>((end - begin) * pixel));
        std::memset(to + end * pixel, 0, static_cast<size_t>((g.kernel_width - end) * pixel));
        continue;
      }
      for (int64_t kx = 0; kx < g.kernel_width; ++kx) {
        const int64_t x = left + kx * g.dilation_x;
        if (x < 0 || x >= g.width) {
          std::memset(to + kx * pixel, 0, static_cast<size_t>(pixel));
        } else {
          std::memcpy(to + kx * pixel, from + x * pixel, static_cast<size_t>(pixel));
        }
      }
    }
  }
}

void convolve_patches(const ConvolutionGeometry& g, const void* input, const Matvec& call,
                      FunctionRef<void(const Matvec&)> multiply) {
  const int64_t item = element_bytes(call.element), m = g.images * g.positions();
  Matvec whole = call;
  whole.m = m;
  whole.x_columns = false;
  if (g.pointwise()) {
    whole.x = input;
    whole.x_stride = g.channels;
    return multiply(whole);
  }
  const int64_t row_bytes = call.k * item, pitch = row_pitch(row_bytes);
  const auto multiply_rows = [&](int64_t first, int64_t count) {
    static thread_local Scratch memory;
    std::byte* const rows = memory.get(count * pitch);
    parallel_for(0, count, std::max<int64_t>(1, kBytesPerThread / row_bytes), [&](int64_t begin, int64_t end) {
      gather_patches(g, item, input, first + begin, end - begin, rows + begin * pitch, pitch);
    });
    Matvec part = whole;
    part.m = count;
    part.x = rows;
    part.x_stride = pitch / item;
    part.y = static_cast<std::byte*>(call.y) + first * call.y_stride * item;
    multiply(part);
  };
  // A weight that stays in each thread's cache meets small blocks, which threads share. A larger
  // one meets as many rows as possible at once, and threads share its outputs.
  const int64_t threads = thread_count();
  const bool small_weight = call.n * row_bytes <= kSmallWeight;
  int64_t block = std::clamp((small_weight ? kBlockBytes : kMostBytes) / pitch, std::min(kFewestRows, m), m);
  int64_t blocks = divide_up(m, block);
  const bool shared = small_weight && m >= threads * kFewestRows;
  if (shared) blocks = round_up(blocks, threads);
  block = divide_up(m, blocks);
  blocks = divide_up(m, block);
  const auto multiply_blocks = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) multiply_rows(i * block, std::min(block, m - i * block));
  };
  if (shared) {
    parallel_for(0, blocks, 1, multiply_blocks);
  } else {
    multiply_blocks(0, blocks);
  }
}

}  // namespace hetero::backend
