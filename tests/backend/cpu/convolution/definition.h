// What the tests of convolutions share: numbers, and the definition of what meets what.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/convolution/geometry.h"
#include "backend/cpu/kernels/matvec.h"

namespace hetero::backend {

inline std::string text(const ConvolutionGeometry& g) {
  std::ostringstream out;
  out << g.images << ' ' << g.channels << ' ' << g.height << 'x' << g.width << " outputs " << g.outputs << " kernel "
      << g.kernel_height << 'x' << g.kernel_width << " stride " << g.stride_y << 'x' << g.stride_x << " padding "
      << g.padding_y << 'x' << g.padding_x << " dilation " << g.dilation_y << 'x' << g.dilation_x;
  return out.str();
}

// Of a depthwise convolution over square images.
inline ConvolutionGeometry square(int64_t images, int64_t channels, int64_t side, int64_t kernel, int64_t stride,
                                  int64_t padding, int64_t dilation = 1) {
  return {.images = images,
          .channels = channels,
          .height = side,
          .width = side,
          .outputs = channels,
          .kernel_height = kernel,
          .kernel_width = kernel,
          .stride_y = stride,
          .stride_x = stride,
          .padding_y = padding,
          .padding_x = padding,
          .dilation_y = dilation,
          .dilation_x = dilation};
}

inline std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

inline std::vector<float> unset(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

// As memory has them, and from there.
inline std::vector<std::byte> stored(const std::vector<float>& values, Element element) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(element_bytes(element)));
  narrow(element, values.data(), static_cast<int64_t>(values.size()), bytes.data());
  return bytes;
}
inline std::vector<float> widened(const std::vector<std::byte>& bytes, Element element) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(element_bytes(element)));
  widen(element, bytes.data(), static_cast<int64_t>(values.size()), values.data());
  return values;
}

// A pool of so many threads, of which one does the work of all in turn, as long as this lives.
class Threads {
 public:
  explicit Threads(int64_t threads) {
    count = threads;
    set_parallel_pool(threads > 1 ? &kPool : nullptr);
  }
  ~Threads() { set_parallel_pool(nullptr); }
  Threads(const Threads&) = delete;

 private:
  static inline int64_t count = 1;
  static constexpr ParallelPool kPool = {[](int64_t begin, int64_t end, int64_t grain, RangeFunction body) {
                                           const int64_t step = std::max(grain, divide_up(end - begin, count));
                                           for (int64_t i = begin; i < end; i += step) body(i, std::min(end, i + step));
                                         },
                                         [] { return count; }};
};

// The pixel of the images that a point of the kernel meets at an output, all counted row by row; -1
// outside.
inline int64_t pixel_at(const ConvolutionGeometry& g, int64_t output, int64_t point) {
  const int64_t position = output % g.positions();
  const int64_t y = position / g.out_width() * g.stride_y - g.padding_y + point / g.kernel_width * g.dilation_y;
  const int64_t x = position % g.out_width() * g.stride_x - g.padding_x + point % g.kernel_width * g.dilation_x;
  if (y < 0 || y >= g.height || x < 0 || x >= g.width) return -1;
  return (output / g.positions() * g.height + y) * g.width + x;
}

}  // namespace hetero::backend
