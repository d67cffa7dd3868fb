// ConvolutionGeometry: the sizes of a 2-D convolution, whatever its layouts.
//
// Thread safety: a value.

#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/base/rounding.h"

namespace hetero::backend {

// Of images with `channels` and `outputs` of those that are made of them. A 1-D convolution has
// height 1.
struct ConvolutionGeometry {
  int64_t images = 1;
  int64_t channels = 1;
  int64_t height = 1;
  int64_t width = 1;
  int64_t outputs = 1;
  int64_t kernel_height = 1;
  int64_t kernel_width = 1;
  int64_t stride_y = 1;
  int64_t stride_x = 1;
  int64_t padding_y = 0;
  int64_t padding_x = 0;
  int64_t dilation_y = 1;
  int64_t dilation_x = 1;

  bool operator==(const ConvolutionGeometry&) const = default;
  int64_t out_height() const { return (height + 2 * padding_y - dilation_y * (kernel_height - 1) - 1) / stride_y + 1; }
  int64_t out_width() const { return (width + 2 * padding_x - dilation_x * (kernel_width - 1) - 1) / stride_x + 1; }
  int64_t pixels() const { return height * width; }
  int64_t kernel() const { return kernel_height * kernel_width; }
  int64_t positions() const { return out_height() * out_width(); }
  // Whether a channel's row of columns is the channel's plane.
  bool pointwise() const { return kernel() == 1 && stride_y == 1 && stride_x == 1 && padding_y == 0 && padding_x == 0; }
};

// Taps [first, last) along one dimension, which meet the pixels of an image.
struct Taps {
  int64_t first, last;

  // Of an output whose first tap is at pixel `start`, which may be outside.
  Taps(int64_t start, int64_t kernel, int64_t dilation, int64_t pixels)
      : first(start < 0 ? divide_up(-start, dilation) : 0),
        last(start < pixels ? std::min(kernel, divide_up(pixels - start, dilation)) : 0) {
    first = std::min(first, kernel);
    last = std::max(last, first);
  }
};

// Outputs [first, last) of a row, which have all their taps along it within the image.
struct WholeOutputs {
  int64_t first, last;
};
inline WholeOutputs whole_outputs(const ConvolutionGeometry& g) {
  const int64_t first = std::min(divide_up(g.padding_x, g.stride_x), g.out_width());
  const int64_t room = g.width + g.padding_x - g.dilation_x * (g.kernel_width - 1) - 1;
  return {first, std::max(first, room < 0 ? 0 : std::min(room / g.stride_x + 1, g.out_width()))};
}

}  // namespace hetero::backend
