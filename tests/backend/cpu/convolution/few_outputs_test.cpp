// Convolutions to few channels against the definition in double.

#include "backend/cpu/few_outputs/few_outputs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/backend/cpu/convolution/definition.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

// The output [images, out_height, out_width, outputs] in double.
std::vector<double> truth(const FewOutputs& call) {
  const ConvolutionGeometry& g = call.geometry;
  std::vector<double> made;
  for (int64_t image = 0; image < g.images; ++image) {
    for (int64_t position = 0; position < g.positions(); ++position) {
      const int64_t top = position / g.out_width() * g.stride_y - g.padding_y;
      const int64_t left = position % g.out_width() * g.stride_x - g.padding_x;
      for (int64_t o = 0; o < g.outputs; ++o) {
        double sum = call.bias != nullptr ? call.bias[o] : 0;
        for (int64_t tap = 0; tap < g.kernel(); ++tap) {
          const int64_t y = top + tap / g.kernel_width * g.dilation_y, x = left + tap % g.kernel_width * g.dilation_x;
          if (y < 0 || y >= g.height || x < 0 || x >= g.width) continue;
          const float* const pixel = call.input + ((image * g.height + y) * g.width + x) * g.channels;
          const float* const weights = call.filter + (o * g.kernel() + tap) * g.channels;
          for (int64_t c = 0; c < g.channels; ++c) sum += double{pixel[c]} * weights[c];
        }
        made.push_back(std::min<double>(std::max<double>(sum, call.limits.low), call.limits.high));
      }
    }
  }
  return made;
}

TEST_CASE("few outputs are sums over all channels of the pixels under the kernel") {
  const ConvolutionGeometry geometries[] = {
      {.images = 2,
       .channels = 16,
       .height = 7,
       .width = 23,
       .kernel_height = 3,
       .kernel_width = 3,
       .padding_y = 1,
       .padding_x = 1},
      {.channels = 32, .height = 5, .width = 40, .kernel_height = 1, .kernel_width = 1},
      {.channels = 16, .height = 12, .width = 9, .kernel_height = 9, .kernel_width = 5, .padding_y = 4, .padding_x = 6},
      {.images = 3,
       .channels = 48,
       .height = 8,
       .width = 11,
       .kernel_height = 2,
       .kernel_width = 3,
       .stride_y = 2,
       .stride_x = 3,
       .padding_x = 2},
      {.channels = 16,
       .height = 9,
       .width = 14,
       .kernel_height = 3,
       .kernel_width = 3,
       .padding_y = 3,
       .padding_x = 2,
       .dilation_y = 3,
       .dilation_x = 2},
      // One output of a huge stride, by one tap of a huge dilation.
      {.channels = 16,
       .height = 3,
       .width = 5,
       .stride_y = int64_t{1} << 60,
       .stride_x = int64_t{1} << 60,
       .dilation_y = int64_t{1} << 60,
       .dilation_x = int64_t{1} << 60},
      // Kernels that lie outside the image as a whole.
      {.channels = 16, .height = 1, .width = 2, .kernel_height = 2, .kernel_width = 1, .padding_y = 5, .padding_x = 3},
      {.channels = 16, .height = 1, .width = 3, .kernel_height = 1, .kernel_width = 2, .padding_x = 1, .dilation_x = 4},
  };
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set > instruction_set()) continue;
    for (ConvolutionGeometry g : geometries) {
      for (g.outputs = 1; g.outputs <= 4; ++g.outputs) {
        REQUIRE(fits_few_outputs(g, Element::kFloat32, set));
        const std::vector<float> input = numbers(g.images * g.pixels() * g.channels, 1);
        const std::vector<float> filter = numbers(g.outputs * g.kernel() * g.channels, 2), bias = numbers(g.outputs, 3);
        for (const bool planes : {false, true}) {
          std::vector<float> output(static_cast<size_t>(g.images * g.positions() * g.outputs), 77);
          FewOutputs call{.geometry = g,
                          .input = input.data(),
                          .filter = filter.data(),
                          .output = output.data(),
                          .output_planes = planes};
          if (planes) call.limits = {.low = -1, .high = 2};
          if (!planes) call.bias = bias.data();
          convolve_few_outputs(call, set);
          const std::vector<double> expected = truth(call);
          for (int64_t i = 0; i < std::ssize(expected); ++i) {
            const int64_t o = i % g.outputs, position = i / g.outputs % g.positions();
            const int64_t image = i / g.outputs / g.positions();
            const int64_t at = planes ? (image * g.outputs + o) * g.positions() + position : i;
            CAPTURE(i, planes, g.outputs, g.kernel_height, g.kernel_width);
            REQUIRE(std::abs(output[static_cast<size_t>(at)] - expected[static_cast<size_t>(i)]) <
                    1e-4 * std::sqrt(static_cast<double>(g.kernel() * g.channels)));
          }
        }
      }
    }
  }
}

TEST_CASE("more outputs, some of a vector's channels, and 16 bits are for others") {
  ConvolutionGeometry g{.channels = 16, .height = 3, .width = 3, .outputs = 5};
  CHECK_FALSE(fits_few_outputs(g, Element::kFloat32));
  g.outputs = 4;
  CHECK_FALSE(fits_few_outputs(g, Element::kBfloat16));
  CHECK_FALSE(fits_few_outputs(g, Element::kFloat32, InstructionSet::kPortable));
  g.channels = 24;
  CHECK_FALSE(fits_few_outputs(g, Element::kFloat32));
}

}  // namespace
}  // namespace hetero::backend
