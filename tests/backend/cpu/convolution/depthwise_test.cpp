// Depthwise convolutions against the definition in double, by every instruction set.

#include "backend/cpu/convolution/depthwise.h"

#include <cmath>
#include <vector>

#include "backend/cpu/vector/half.h"
#include "tests/backend/cpu/convolution/definition.h"
#include "tests/backend/cpu/convolution/follower.h"
#include "tests/backend/cpu/kernels/limits_check.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Geometry = ConvolutionGeometry;

// Of an output, counted row by row; `weight` as a convolution has it.
double expected_at(const Geometry& g, const std::vector<float>& input, const std::vector<float>& weight, int64_t output,
                   int64_t channel) {
  double sum = 0;
  for (int64_t tap = 0; tap < g.kernel(); ++tap) {
    const int64_t pixel = pixel_at(g, output, tap);
    if (pixel < 0) continue;
    sum += double{input[static_cast<size_t>(pixel * g.channels + channel)]} *
           weight[static_cast<size_t>(channel * g.kernel() + tap)];
  }
  return sum;
}

void check(const Geometry& g, bool with_bias) {
  INFO(text(g) << " bias " << with_bias);
  const std::vector<float> input = numbers(g.images * g.pixels() * g.channels, 1);
  const std::vector<float> weight = numbers(g.channels * g.kernel(), 2), bias = numbers(g.channels, 3);
  std::vector<float> taps(weight.size());
  depthwise_taps(g, Element::kFloat32, weight.data(), taps.data());
  for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set > instruction_set()) continue;
    std::vector<float> output = unset(g.images * g.positions() * g.channels);
    depthwise({.geometry = g,
               .input = input.data(),
               .taps = taps.data(),
               .bias = with_bias ? bias.data() : nullptr,
               .output = output.data()},
              set);
    size_t different = 0, i = 0;
    for (int64_t image = 0; image < g.images; ++image) {
      for (int64_t position = 0; position < g.positions(); ++position) {
        for (int64_t c = 0; c < g.channels; ++c) {
          const double sum = expected_at(g, input, weight, image * g.positions() + position, c);
          // Written so that a NaN is not close.
          different += !(std::abs(output[i++] - sum - (with_bias ? bias[c] : 0)) <= 1e-5);
        }
      }
    }
    REQUIRE(different == 0);
  }
}

TEST_CASE("depthwise convolutions of any number of channels") {
  for (const int64_t channels : {1, 3, 4, 8, 15, 16, 17, 31, 48, 64, 72, 100, 130}) {
    for (const bool with_bias : {false, true}) check(square(2, channels, 9, 3, 1, 1), with_bias);
  }
}

TEST_CASE("depthwise convolutions of every geometry") {
  for (const int64_t side : {1, 2, 5, 7, 8, 13, 20}) {
    for (const int64_t kernel : {1, 2, 3, 5, 7}) {
      for (const int64_t stride : {1, 2, 3}) {
        for (const int64_t padding : {0, 1, 3, 8}) {
          for (const int64_t dilation : {1, 2, 4}) {
            if (side + 2 * padding <= dilation * (kernel - 1)) continue;
            // Less than a vector of channels, and whole ones beside a part.
            check(square(1, 5, side, kernel, stride, padding, dilation), true);
            if (side > 7 && stride * dilation < 5) check(square(1, 37, side, kernel, stride, padding, dilation), true);
          }
        }
      }
    }
  }
}

TEST_CASE("depthwise convolutions of signals and of unequal sides") {
  for (const int64_t length : {1, 4, 50, 131}) {
    check({.images = 3,
           .channels = 24,
           .height = 1,
           .width = length,
           .outputs = 24,
           .kernel_width = 4,
           .padding_x = 6,
           .dilation_x = 2},
          true);
  }
  check({.images = 2,
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
         .dilation_y = 3},
        false);
}

TEST_CASE("depthwise convolutions by few columns, of unequal sides") {
  for (const int64_t columns : {3, 5, 7}) {
    for (const int64_t stride : {1, 2}) {
      for (const int64_t rows : {1, 4}) {
        check({.images = 2,
               .channels = 20,
               .height = 11,
               .width = 17,
               .outputs = 20,
               .kernel_height = rows,
               .kernel_width = columns,
               .stride_y = 3 - stride,
               .stride_x = stride,
               .padding_y = 4,
               .padding_x = 1,
               .dilation_y = 3},
              true);
      }
    }
  }
}

TEST_CASE("depthwise convolutions of elements of 2 bytes round sums in float32 once") {
  for (const Element element : {Element::kBfloat16, Element::kFloat16}) {
    const auto narrow = element == Element::kBfloat16 ? &float_to_bfloat16 : &float_to_float16;
    const auto widen = element == Element::kBfloat16 ? &bfloat16_to_float : &float16_to_float;
    // By blocks, and by rows of 3, 5 and 7 columns.
    std::vector<Geometry> geometries;
    for (const int64_t channels : {1, 16, 23, 32, 48, 77, 100}) geometries.push_back(square(2, channels, 9, 3, 2, 1));
    for (const int64_t channels : {8, 20, 48}) {
      for (const int64_t kernel : {3, 5, 7}) {
        for (const int64_t stride : {1, 2}) geometries.push_back(square(2, channels, 19, kernel, stride, 2));
      }
    }
    for (const Geometry& g : geometries) {
      INFO(text(g));
      const int64_t channels = g.channels;
      // Small whole numbers without -0: every sum is one, too, and rounded where it is too large.
      const auto halves = [&](int64_t count, uint32_t seed) {
        std::vector<uint16_t> made;
        for (const float value : numbers(count, seed)) made.push_back(narrow(std::round(value * 20) + 0.0f));
        return made;
      };
      const auto floats = [&](const std::vector<uint16_t>& from) {
        std::vector<float> made;
        for (const uint16_t bits : from) made.push_back(widen(bits));
        return made;
      };
      const std::vector<uint16_t> input = halves(g.images * g.pixels() * channels, 1);
      const std::vector<uint16_t> weight = halves(channels * g.kernel(), 2), bias = halves(channels, 3);
      const std::vector<float> wide_input = floats(input), wide_weight = floats(weight);
      std::vector<float> taps(weight.size());
      depthwise_taps(g, element, weight.data(), taps.data());
      for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
        if (set > instruction_set()) continue;
        std::vector<uint16_t> output(static_cast<size_t>(g.images * g.positions() * channels) + 1, 0x1234);
        depthwise({.geometry = g,
                   .element = element,
                   .input = input.data(),
                   .taps = taps.data(),
                   .bias = bias.data(),
                   .output = output.data()},
                  set);
        size_t different = 0, i = 0;
        for (int64_t image = 0; image < g.images; ++image) {
          for (int64_t position = 0; position < g.positions(); ++position) {
            for (int64_t c = 0; c < channels; ++c) {
              const double sum = expected_at(g, wide_input, wide_weight, image * g.positions() + position, c);
              different += output[i++] != narrow(static_cast<float>(sum + widen(bias[static_cast<size_t>(c)])));
            }
          }
        }
        REQUIRE(different == 0);
        REQUIRE(output.back() == 0x1234);
      }
    }
  }
}

TEST_CASE("depthwise convolutions with a follower") {
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const int64_t channels : {5, 64, 600}) {
      const Geometry g = square(2, channels, 31, 3, 1, 1);
      const std::vector<float> input = numbers(g.images * g.pixels() * g.channels, 1);
      const std::vector<float> taps = numbers(g.kernel() * g.channels, 2);
      check_follower(g, [&](float* output, const Follower* follower) {
        return depthwise(
            {.geometry = g, .input = input.data(), .taps = taps.data(), .output = output, .follower = follower});
      });
    }
  }
}

TEST_CASE("depthwise convolutions limit what they store") {
  for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set > instruction_set()) continue;
    for (const int64_t channels : {3, 16, 40, 72}) {
      for (const int64_t stride : {1, 2}) {
        const Geometry g = square(1, channels, 13, 3, stride, 1);
        std::vector<float> input = numbers(g.pixels() * channels, 1);
        input[static_cast<size_t>(channels)] = std::nanf("");
        const std::vector<float> taps = numbers(g.kernel() * channels, 2);
        for (const Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
          const std::vector<std::byte> x = stored(input, element);
          const auto run = [&](float* output, const Limits& limits) {
            std::vector<std::byte> y = stored(unset(g.positions() * channels), element);
            depthwise({.geometry = g,
                       .element = element,
                       .input = x.data(),
                       .taps = taps.data(),
                       .output = y.data(),
                       .limits = limits},
                      set);
            std::ranges::copy(widened(y, element), output);
          };
          check_limits(g.positions() * channels, run, element != Element::kFloat32);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hetero::backend
