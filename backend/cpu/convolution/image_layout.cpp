#include "backend/cpu/convolution/image_layout.h"

#include <algorithm>
#include <cstring>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/convolution/unfold.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// Pixels that are turned at a time stay in a first-level cache.
constexpr int64_t kTogether = 4096;  // elements
constexpr int64_t kBytesPerThread = 32 << 10;

}  // namespace

void put_channels_last(const float* from, int64_t images, int64_t channels, int64_t pixels, Element element, void* to) {
  const int64_t block = std::max<int64_t>(16, kTogether / channels), blocks = divide_up(pixels, block);
  const int64_t grain = divide_up(kBytesPerThread / 4, block * channels);
  parallel_for(0, images * blocks, grain, [&](int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / blocks, first = i % blocks * block, count = std::min(block, pixels - first);
      const float* const planes = from + image * channels * pixels + first;
      std::byte* const there =
          static_cast<std::byte*>(to) + (image * pixels + first) * channels * element_bytes(element);
      const bool casts = element != Element::kFloat32;
      float* const turned = casts ? memory.get<float>(count * channels) : reinterpret_cast<float*>(there);
      interleave(planes, pixels, channels, count, turned);
      if (casts) narrow(element, turned, count * channels, there);
    }
  });
}

void concatenate_rows(std::span<const RowPiece> pieces, int64_t rows, std::byte* to) {
  int64_t row_bytes = 0;
  for (const RowPiece& piece : pieces) row_bytes += piece.bytes;
  parallel_for(0, rows, divide_up(kBytesPerThread, row_bytes), [&](int64_t begin, int64_t end) {
    std::byte* there = to + begin * row_bytes;
    for (int64_t row = begin; row < end; ++row) {
      for (const RowPiece& piece : pieces) {
        if (piece.from == nullptr) {
          std::memset(there, 0, static_cast<size_t>(piece.bytes));
        } else {
          std::memcpy(there, piece.from + row * piece.bytes, static_cast<size_t>(piece.bytes));
        }
        there += piece.bytes;
      }
    }
  });
}

}  // namespace hetero::backend
