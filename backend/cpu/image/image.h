// Image, ImageBatch: pixels in memory, with interleaved channels, and how rows are divided among
// threads.
//
// Kernels in this folder take a list of images, whose sizes may differ, and write a dense batch of
// results of one size; or a batch, and write one. They have the bits of OpenCV's and Pillow's
// wheels where their headers say so, on any number of threads.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/base/parallel.h"

namespace hetero::backend {

// Rows may be any distance apart; pixels within a row are dense. Strides count elements.
template <typename T>
struct Image {
  T* data = nullptr;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int64_t stride = 0;

  T* row(int64_t y) const { return data + y * stride; }
  int64_t row_elements() const { return width * channels; }
  // One past the last element of the last row.
  T* end() const { return row(height - 1) + row_elements(); }
};

// Dense images of one size, one after the other.
template <typename T>
struct ImageBatch {
  T* data = nullptr;
  int64_t count = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;

  Image<T> at(int64_t i) const {
    const int64_t stride = width * channels;
    return {data + i * height * stride, height, width, channels, stride};
  }
};

inline uint8_t saturate_to_byte(int32_t value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

// Calls body(image, begin, end) for bands of the rows of `count` results, in parallel. A band is a
// whole result if there are many. `row_work` is about the elements that a row reads and writes.
inline void for_row_bands(int64_t count, int64_t rows, int64_t row_work,
                          FunctionRef<void(int64_t image, int64_t begin, int64_t end)> body) {
  constexpr int64_t kFewestRows = 16;
  constexpr int64_t kWorkPerThread = 32 << 10;
  const int64_t threads = thread_count();
  const int64_t wanted = count >= 4 * threads ? 1 : (2 * threads + count - 1) / std::max<int64_t>(count, 1);
  const int64_t bands = threads == 1 ? 1 : std::clamp<int64_t>(std::min(wanted, rows / kFewestRows), 1, 64);
  const int64_t band_work = std::max<int64_t>(1, row_work * std::max<int64_t>(1, rows / bands));
  parallel_for(0, count * bands, std::max<int64_t>(1, kWorkPerThread / band_work), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t band = i % bands;
      body(i / bands, rows * band / bands, rows * (band + 1) / bands);
    }
  });
}

}  // namespace hetero::backend
