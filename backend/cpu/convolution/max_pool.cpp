#include "backend/cpu/convolution/max_pool.h"

#include <algorithm>

#include "backend/base/parallel.h"
#include "backend/base/rounding.h"
#include "backend/cpu/convolution/image_kernels.h"

namespace hetero::backend {
namespace {

constexpr int64_t kComparisonsPerThread = 64 << 10;

// The first pixel at or behind `start`, by steps, that is in the image.
int64_t first_within(int64_t start, int64_t step) { return start < 0 ? start + divide_up(-start, step) * step : start; }

}  // namespace

void max_pool(const MaxPool& call, InstructionSet set) {
  const ConvolutionGeometry& g = call.geometry;
  const auto kernel = image_kernels(set).largest[static_cast<size_t>(call.element)];
  const int64_t pixel = g.channels * element_bytes(call.element);
  const int64_t grain = std::max<int64_t>(1, kComparisonsPerThread / (g.channels * g.kernel()));
  const int64_t positions = call.out_height * call.out_width;
  parallel_for(0, g.images * positions, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / positions;
      const int64_t top = i % positions / call.out_width * g.stride_y - g.padding_y;
      const int64_t left = i % call.out_width * g.stride_x - g.padding_x;
      kernel({.image = static_cast<const std::byte*>(call.input) + image * g.pixels() * pixel,
              .y = first_within(top, g.dilation_y),
              .y_end = std::min(top + g.dilation_y * (g.kernel_height - 1) + 1, g.height),
              .y_step = g.dilation_y,
              .x = first_within(left, g.dilation_x),
              .x_end = std::min(left + g.dilation_x * (g.kernel_width - 1) + 1, g.width),
              .x_step = g.dilation_x,
              .width = g.width,
              .channels = g.channels,
              .output = static_cast<std::byte*>(call.output) + i * pixel,
              .places = call.places + i * g.channels});
    }
  });
}

void max_pool(const MaxPool& call) { max_pool(call, instruction_set()); }

}  // namespace hetero::backend
