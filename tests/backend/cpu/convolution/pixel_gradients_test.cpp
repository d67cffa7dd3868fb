// Gradients over images with their channels last against the definition in double, by every
// instruction set and some numbers of threads.

#include "backend/cpu/convolution/pixel_gradients.h"

#include <cmath>
#include <vector>

#include "tests/backend/cpu/convolution/definition.h"
#include "tests/backend/cpu/kernels/plain_gemm.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Geometry = ConvolutionGeometry;

struct Expected {
  std::vector<double> input, weight, bias;
};

// Of a pointwise convolution, or a depthwise one; what it sums lies as it says.
Expected expected_of(const Geometry& g, bool depthwise, const std::vector<float>& grad_output,
                     const std::vector<float>& input, const std::vector<float>& weight) {
  Expected expected{.input = std::vector<double>(input.size()),
                    .weight = std::vector<double>(weight.size()),
                    .bias = std::vector<double>(static_cast<size_t>(g.outputs))};
  for (int64_t output = 0; output < g.images * g.positions(); ++output) {
    for (int64_t o = 0; o < g.outputs; ++o) {
      const double gradient = grad_output[static_cast<size_t>(output * g.outputs + o)];
      expected.bias[static_cast<size_t>(o)] += gradient;
      const auto add = [&](int64_t pixel, int64_t channel, int64_t tap) {
        const auto from = static_cast<size_t>(pixel * g.channels + channel), by = static_cast<size_t>(tap);
        expected.input[from] += gradient * weight[by];
        expected.weight[by] += gradient * input[from];
      };
      for (int64_t tap = 0; depthwise && tap < g.kernel(); ++tap) {
        const int64_t pixel = pixel_at(g, output, tap);
        if (pixel >= 0) add(pixel, o, o * g.kernel() + tap);
      }
      for (int64_t c = 0; !depthwise && c < g.channels; ++c) add(output, c, o * g.channels + c);
    }
  }
  return expected;
}

size_t different(const std::vector<float>& found, const std::vector<double>& expected, double tolerance) {
  size_t count = 0;
  // Written so that a NaN is not close.
  for (size_t i = 0; i < found.size(); ++i) count += !(std::abs(found[i] - expected[i]) <= tolerance);
  return count;
}

template <typename Run>
void check(const Geometry& g, bool depthwise, Run&& run) {
  INFO(text(g));
  const std::vector<float> input = numbers(g.images * g.pixels() * g.channels, 1);
  const std::vector<float> weight = numbers(g.outputs * (depthwise ? g.kernel() : g.channels), 2);
  const std::vector<float> grad_output = numbers(g.images * g.positions() * g.outputs, 3);
  const Expected expected = expected_of(g, depthwise, grad_output, input, weight);
  const double summed = static_cast<double>(g.images * g.positions());
  for (const unsigned wanted : {1u, 2u, 6u, 7u}) {
    std::vector<float> of_input = unset(static_cast<int64_t>(input.size()));
    std::vector<float> of_weight = unset(static_cast<int64_t>(weight.size())), of_bias = unset(g.outputs);
    run({.geometry = g,
         .grad_output = grad_output.data(),
         .input = input.data(),
         .weight = weight.data(),
         .gradients = {.input = (wanted & 1) != 0 ? of_input.data() : nullptr,
                       .weight = (wanted & 2) != 0 ? of_weight.data() : nullptr,
                       .bias = (wanted & 4) != 0 ? of_bias.data() : nullptr}});
    if ((wanted & 1) != 0) REQUIRE(different(of_input, expected.input, 1e-4) == 0);
    if ((wanted & 2) != 0) REQUIRE(different(of_weight, expected.weight, 1e-6 * summed + 1e-5) == 0);
    if ((wanted & 4) != 0) REQUIRE(different(of_bias, expected.bias, 1e-6 * summed + 1e-5) == 0);
  }
}

void check_depthwise(const Geometry& g) {
  for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set > instruction_set()) continue;
    check(g, true, [&](const PixelGradients& call) { depthwise_gradients(call, set); });
  }
}

TEST_CASE("gradients of depthwise convolutions of any number of channels") {
  for (const int64_t channels : {1, 3, 8, 15, 16, 17, 32, 48, 72, 100})
    check_depthwise(square(2, channels, 9, 3, 1, 1));
}

TEST_CASE("gradients of depthwise convolutions of every geometry") {
  for (const int64_t side : {1, 2, 5, 8, 13}) {
    for (const int64_t kernel : {1, 2, 3, 5, 7}) {
      for (const int64_t stride : {1, 2, 3, 4}) {
        for (const int64_t padding : {0, 1, 3, 8}) {
          for (const int64_t dilation : {1, 2, 4}) {
            if (side + 2 * padding <= dilation * (kernel - 1)) continue;
            check_depthwise(square(1, 5, side, kernel, stride, padding, dilation));
          }
        }
      }
    }
  }
}

TEST_CASE("gradients of depthwise convolutions of signals and of unequal sides") {
  check_depthwise({.images = 3,
                   .channels = 24,
                   .height = 1,
                   .width = 50,
                   .outputs = 24,
                   .kernel_width = 4,
                   .padding_x = 6,
                   .dilation_x = 2});
  check_depthwise({.images = 2,
                   .channels = 6,
                   .height = 11,
                   .width = 4,
                   .outputs = 6,
                   .kernel_height = 2,
                   .kernel_width = 3,
                   .stride_y = 1,
                   .stride_x = 2,
                   .padding_y = 4,
                   .padding_x = 0,
                   .dilation_y = 3});
}

TEST_CASE("gradients on several threads") {
  for (const int64_t threads : {2, 3, 7}) {
    const Threads pool(threads);
    check_depthwise(square(3, 40, 28, 3, 2, 1));
    check_depthwise(square(1, 64, 14, 5, 1, 2));
    const auto pointwise = [](const PixelGradients& call) { pointwise_gradients(call, &plain_sgemm); };
    check({.images = 2, .channels = 24, .height = 20, .width = 20, .outputs = 40}, false, pointwise);
    check({.images = 2, .channels = 130, .height = 5, .width = 5, .outputs = 90}, false, pointwise);
  }
}

TEST_CASE("gradients of pointwise convolutions") {
  const auto pointwise = [](const PixelGradients& call) { pointwise_gradients(call, &plain_sgemm); };
  check({}, false, pointwise);
  check({.images = 1, .channels = 3, .height = 1, .width = 17, .outputs = 5}, false, pointwise);
  check({.images = 3, .channels = 7, .height = 6, .width = 5, .outputs = 2}, false, pointwise);
}

}  // namespace
}  // namespace hetero::backend
