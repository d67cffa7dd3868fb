// Images resized by taking for each pixel the nearest one, as decoders do. ATen's kernel computes
// with each element.
//
// Thread safety: any thread; calls share nothing. Works on parallel_for's threads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hetero::backend {

struct NearestResize {
  int64_t images = 1;
  int64_t height = 1;
  int64_t width = 1;
  int64_t pixel_bytes = 1;
  std::span<const int64_t> rows;     // per row of the output: that of the input
  std::span<const int64_t> columns;  // likewise
  const std::byte* input = nullptr;  // [images, height, width] pixels
  std::byte* output = nullptr;       // [images, rows, columns] pixels
};

// Writes call.output, which does not overlap the input.
void resize_nearest(const NearestResize& call);

}  // namespace hetero::backend
