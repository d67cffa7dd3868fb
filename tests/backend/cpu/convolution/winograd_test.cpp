// Winograd's convolutions against the definition in double.

#include "backend/cpu/winograd/winograd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "backend/cpu/kernels/panel_gemm.h"
#include "tests/backend/cpu/convolution/definition.h"
#include "tests/backend/cpu/convolution/follower.h"
#include "tests/backend/cpu/kernels/limits_check.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Geometry = ConvolutionGeometry;

Geometry points(int64_t images, int64_t channels, int64_t outputs, int64_t height, int64_t width, int64_t padding) {
  return {.images = images,
          .channels = channels,
          .height = height,
          .width = width,
          .outputs = outputs,
          .kernel_height = 3,
          .kernel_width = 3,
          .padding_y = padding,
          .padding_x = padding};
}

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> all;
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set <= instruction_set()) all.push_back(set);
  }
  return all;
}

// A convolution and its operands.
struct Operands {
  Geometry g;
  int64_t groups;
  InstructionSet set;
  std::vector<float> input, weight, bias, filter;

  Operands(const Geometry& geometry, InstructionSet instructions, int64_t group_count = 1)
      : g(geometry), groups(group_count), set(instructions) {
    input = numbers(g.images * g.pixels() * g.channels, 1);
    weight = numbers(g.outputs * 9 * g.channels / groups, 2);
    for (float& tap : weight) tap += tap < 0 ? -0.1F : 0.1F;  // none much smaller than others
    bias = numbers(g.outputs, 3);
    filter = unset(winograd_filter_bytes(g, groups, set) / 4 + 16);
    REQUIRE(make_filter());
  }
  bool make_filter() { return make_winograd_filter(g, groups, weight.data(), filter_memory(), set); }
  float* filter_memory() {
    const auto address = reinterpret_cast<uintptr_t>(filter.data());
    return filter.data() + (64 - address % 64) % 64 / sizeof(float);
  }
  FollowedResult run(float* output, const Follower* follower = nullptr, bool biased = true, const Limits& limits = {}) {
    return convolve_winograd({.geometry = g,
                              .groups = groups,
                              .input = input.data(),
                              .filter = filter_memory(),
                              .bias = biased ? bias.data() : nullptr,
                              .output = output,
                              .limits = limits,
                              .follower = follower},
                             set);
  }
  double truth(int64_t row, int64_t n, bool biased) const {
    double sum = biased ? bias[static_cast<size_t>(n)] : 0;
    const int64_t channels = g.channels / groups, first = n / (g.outputs / groups) * channels;
    for (int64_t point = 0; point < 9; ++point) {
      const int64_t pixel = pixel_at(g, row, point);
      for (int64_t c = 0; pixel >= 0 && c < channels; ++c) {
        sum += double{input[static_cast<size_t>(pixel * g.channels + first + c)]} *
               weight[static_cast<size_t>((n * 9 + point) * channels + c)];
      }
    }
    return sum;
  }
};

void check(const Geometry& g, int64_t groups = 1) {
  for (const InstructionSet set : sets()) {
    INFO(text(g) << " set " << static_cast<int>(set));
    REQUIRE(fits_winograd(g, set));
    Operands operands(g, set, groups);
    const int64_t rows = g.images * g.positions();
    for (const bool biased : {true, false}) {
      std::vector<float> output = unset(rows * g.outputs);
      REQUIRE(operands.run(output.data(), nullptr, biased) == FollowedResult::kMade);
      // The largest error, of some rows where there are many.
      double error = 0;
      const int64_t step = 1 + rows * g.outputs * g.channels / groups / (int64_t{1} << 17);
      for (int64_t row = 0; row < rows; row += step) {
        for (int64_t n = 0; n < g.outputs; ++n) {
          const double found = output[static_cast<size_t>(row * g.outputs + n)];
          const double off = std::abs(found - operands.truth(row, n, biased));
          error = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(error, off);
        }
      }
      REQUIRE(std::all_of(output.begin(), output.end(), [](float made) { return std::isfinite(made); }));
      REQUIRE(error <= 1e-6 * std::sqrt(static_cast<double>(9 * g.channels / groups)));
    }
  }
}

TEST_CASE("Winograd's convolutions of every size") {
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const int64_t height : {1, 2, 3, 4, 7}) {
      for (const int64_t width : {1, 3, 6, 9}) {
        for (const int64_t padding : {0, 1, 2, 5}) {
          if (std::min(height, width) + 2 * padding < 3) continue;
          check(points(2, 5, 3, height, width, padding));
        }
      }
    }
    for (const int64_t channels : {1, 8, 16, 17, 40}) {
      for (const int64_t outputs : {1, 16, 33, 150}) check(points(1, channels, outputs, 6, 5, 1));
    }
    for (const int64_t groups : {2, 3, 6}) check(points(2, 12, 24, 7, 6, 1), groups);
    Geometry uneven = points(3, 4, 4, 5, 8, 0);
    uneven.padding_x = 2;
    check(uneven);
  }
}

TEST_CASE("Winograd's convolutions of many tiles, wide images and large filters") {
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    check(points(2, 32, 32, 41, 40, 1));
    check(points(1, 64, 64, 5, 300, 1));    // a line of tiles in parts
    check(points(1, 150, 140, 14, 13, 1));  // all threads share each product
    check(points(1, 144, 144, 2, 470, 1));  // in parts
    check(points(1, 96, 192, 30, 30, 1), 6);
    check(points(1, 512, 512, 6, 6, 1), 2);
  }
}

Geometry dilated(Geometry g, int64_t dilation_y, int64_t dilation_x) {
  g.dilation_y = dilation_y;
  g.dilation_x = dilation_x;
  return g;
}

TEST_CASE("Winograd's convolutions with dilation") {
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    const auto check_fitting = [](const Geometry& g) {
      if (fits_winograd(g)) check(g);
    };
    for (const auto& [dilation_y, dilation_x] : {std::pair(2, 2), std::pair(3, 1), std::pair(1, 4), std::pair(5, 6)}) {
      for (const int64_t padding : {0, 1, 2, 5}) {
        for (const int64_t width : {11, 13, 20}) {
          check_fitting(dilated(points(2, 5, 3, 12, width + 2, padding), dilation_y, dilation_x));
        }
      }
      check_fitting(dilated(points(1, 16, 16, 9, 300, dilation_y), dilation_y, dilation_x));
      check_fitting(dilated(points(1, 150, 140, 14, 13, dilation_y), dilation_y, dilation_x));
    }
    check(dilated(points(1, 64, 64, 28, 28, 2), 2, 2));
    check(dilated(points(1, 64, 64, 28, 28, 4), 4, 4));
  }
  // Cells that are too large, and that reach far beyond the image.
  REQUIRE_FALSE(fits_winograd(dilated(points(1, 256, 256, 65, 65, 36), 36, 36)));
  REQUIRE_FALSE(fits_winograd(dilated(points(1, 4, 4, 7, 7, 6), 6, 6)));
}

TEST_CASE("what Winograd's convolutions fit") {
  Geometry g = points(1, 4, 4, 8, 8, 1);
  REQUIRE(fits_winograd(g) == has_panels());
  REQUIRE_FALSE(fits_winograd(g, InstructionSet::kPortable));
  for (int64_t Geometry::*const size :
       {&Geometry::stride_y, &Geometry::stride_x, &Geometry::kernel_height, &Geometry::kernel_width}) {
    Geometry other = g;
    other.*size = 2;
    REQUIRE_FALSE(fits_winograd(other));
  }
}

TEST_CASE("Winograd's convolutions with a follower") {
  for (const InstructionSet set : sets()) {
    for (const int64_t threads : {1, 3}) {
      const Threads pool(threads);
      // Whole lines; lines in parts; a large filter.
      for (const Geometry& g : {points(2, 6, 10, 19, 23, 1), points(1, 64, 64, 5, 301, 1), points(1, 150, 140, 7, 9, 0),
                                dilated(points(2, 8, 8, 17, 21, 1), 2, 3)}) {
        Operands operands(g, set);
        check_follower(g, [&](float* output, const Follower* follower) { return operands.run(output, follower); });
      }
    }
  }
}

TEST_CASE("Winograd's convolutions limit what they store") {
  for (const InstructionSet set : sets()) {
    for (const Geometry& g : {points(2, 6, 10, 9, 13, 1), points(1, 16, 33, 7, 8, 0)}) {
      Operands operands(g, set);
      check_limits(g.images * g.positions() * g.outputs, [&](float* output, const Limits& limits) {
        REQUIRE(operands.run(output, nullptr, true, limits) == FollowedResult::kMade);
      });
    }
  }
}

TEST_CASE("Winograd's convolutions refuse pixels that would take from others or spread") {
  for (const InstructionSet set : sets()) {
    for (const int64_t padding : {0, 1, 2}) {
      for (const int64_t dilation : {1, 2}) {
        const Geometry g = dilated(points(2, 20, 5, 9, 12, padding), dilation, dilation);
        std::vector<float> output = unset(g.images * g.positions() * g.outputs);
        for (const int64_t place : {int64_t{0}, int64_t{777}, 2 * g.pixels() * g.channels - 1}) {
          const auto with = [&](float value) {
            Operands operands(g, set);
            operands.input[static_cast<size_t>(place)] = value;
            return operands.run(output.data());
          };
          for (const float value : {1e30F, -1e30F, 1000.0F, std::numeric_limits<float>::infinity(),
                                    -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
            REQUIRE(with(value) == FollowedResult::kOutOfRange);
          }
          REQUIRE(with(-100) == FollowedResult::kMade);
        }
        Operands zeros(g, set);
        for (float& value : zeros.input) value = 0;
        REQUIRE(zeros.run(output.data()) == FollowedResult::kMade);
        // Most of the image is zeros.
        zeros.input[500] = 1e-30F;
        REQUIRE(zeros.run(output.data()) == FollowedResult::kMade);
        Operands large(g, set);
        for (float& value : large.input) value = 3e38F;
        REQUIRE(large.run(output.data()) == FollowedResult::kOutOfRange);
      }
    }
  }
}

TEST_CASE("Winograd's convolutions refuse filters of which some taps would be lost") {
  for (const InstructionSet set : sets()) {
    for (const int64_t channels : {1, 7, 16, 40}) {
      const Geometry g = points(1, channels, 35, 9, 12, 1);
      Operands operands(g, set);
      // Of one output, in all channels.
      const auto with = [&](int64_t output, int64_t tap, float value) {
        std::vector<float> weight(static_cast<size_t>(g.outputs * 9 * channels), 0.5F);
        std::fill_n(weight.begin() + (output * 9 + tap) * channels, channels, value);
        std::swap(operands.weight, weight);
        return operands.make_filter();
      };
      for (const int64_t output : {0, 34}) {
        for (const int64_t tap : {0, 4, 8}) {
          REQUIRE(with(output, tap, -120));
          REQUIRE(with(output, tap, 0));
          REQUIRE_FALSE(with(output, tap, 1e8F));
          REQUIRE_FALSE(with(output, tap, -1e-8F));
        }
      }
      // A channel alone may have small taps.
      if (channels == 1) continue;
      REQUIRE(with(0, 0, 0.5F));
      operands.weight[0] = 1e-8F;
      REQUIRE(operands.make_filter());
    }
  }
}

}  // namespace
}  // namespace hetero::backend
