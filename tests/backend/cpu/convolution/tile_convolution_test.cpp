// Convolutions on the tile unit against the definition in double.

#include "backend/cpu/convolution/tile_convolution.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "backend/base/parallel.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "tests/backend/cpu/convolution/definition.h"
#include "tests/backend/cpu/convolution/follower.h"
#include "tests/backend/cpu/kernels/limits_check.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Geometry = ConvolutionGeometry;

// The weight [outputs, kernel, channels] for the unit.
class Packed {
 public:
  Packed(const Geometry& g, Element element, const void* weight) {
    const int64_t k = g.kernel() * g.channels;
    memory_.reset(std::aligned_alloc(64, static_cast<size_t>(tile_weight_bytes(element, g.outputs, k))));
    REQUIRE(pack_tile_weight({.element = element, .n = g.outputs, .k = k, .w = weight, .w_stride = k}, memory_.get()));
  }
  const void* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
};

void check(const Geometry& g, Element element) {
  INFO(text(g) << " element " << static_cast<int>(element));
  const int64_t k = g.kernel() * g.channels, m = g.images * g.positions();
  const std::vector<std::byte> x = stored(numbers(g.images * g.pixels() * g.channels, 1), element);
  const std::vector<std::byte> w = stored(numbers(g.outputs * k, 2), element);
  const std::vector<std::byte> b = stored(numbers(g.outputs, 3), element);
  const std::vector<float> input = widened(x, element), weight = widened(w, element), bias = widened(b, element);
  std::vector<std::byte> y = stored(unset(m * g.outputs), element);
  const Packed packed(g, element, w.data());
  REQUIRE(convolve_tiles({.geometry = g,
                          .element = element,
                          .input = x.data(),
                          .packed = packed.data(),
                          .bias = b.data(),
                          .output = y.data()}) == FollowedResult::kMade);
  const std::vector<float> output = widened(y, element);
  const double most = element == Element::kFloat32 ? 1e-4 : 0.05;
  size_t different = 0;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t n = 0; n < g.outputs; ++n) {
      double sum = bias[static_cast<size_t>(n)];
      for (int64_t point = 0; point < g.kernel(); ++point) {
        const int64_t pixel = pixel_at(g, row, point);
        for (int64_t c = 0; c < g.channels && pixel >= 0; ++c) {
          sum += double{input[static_cast<size_t>(pixel * g.channels + c)]} *
                 weight[static_cast<size_t>(n * k + point * g.channels + c)];
        }
      }
      const double found = output[static_cast<size_t>(row * g.outputs + n)];
      different += !(std::abs(found - sum) <= most * std::max(1.0, std::abs(sum)));
    }
  }
  REQUIRE(different == 0);
}

void check(const Geometry& g) {
  for (const Element element : {Element::kFloat32, Element::kBfloat16}) check(g, element);
}

TEST_CASE("convolutions on tiles, of every geometry") {
  if (!has_tiles()) return;
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const int64_t side : {1, 5, 18}) {
      for (const int64_t kernel : {1, 2, 3}) {
        for (const int64_t stride : {1, 2, 3}) {
          for (const int64_t padding : {0, 1, 4}) {
            for (const int64_t dilation : {1, 2, 3}) {
              if (side + 2 * padding <= dilation * kernel) continue;
              check({.images = 2,
                     .channels = 32,
                     .height = side,
                     .width = side + 1,
                     .outputs = 35,
                     .kernel_height = kernel,
                     .kernel_width = kernel + 1,
                     .stride_y = stride,
                     .stride_x = std::max<int64_t>(1, stride - 1),
                     .padding_y = padding,
                     .padding_x = padding,
                     .dilation_y = dilation,
                     .dilation_x = dilation});
            }
          }
        }
      }
    }
  }
}

// In bfloat16; the weight is [outputs, kernel, channels of a group].
bool convolve_groups(const Geometry& g, int64_t groups, const std::vector<float>& input,
                     const std::vector<float>& weight, std::vector<float>& output) {
  constexpr Element kElement = Element::kBfloat16;
  const int64_t sets = tile_sets(g, groups, kElement), channels = g.channels / groups, of_set = g.channels / sets;
  std::vector<float> wide(static_cast<size_t>(g.outputs * g.kernel() * of_set));
  for (int64_t n = 0; n < g.outputs; ++n) {
    const int64_t first = n / (g.outputs / groups) * channels % of_set;
    for (int64_t point = 0; point < g.kernel(); ++point) {
      std::copy_n(weight.begin() + (n * g.kernel() + point) * channels, channels,
                  wide.begin() + (n * g.kernel() + point) * of_set + first);
    }
  }
  Geometry packed_as = g;
  packed_as.channels = of_set;
  const std::vector<std::byte> x = stored(input, kElement), w = stored(wide, kElement);
  std::vector<std::byte> y = stored(unset(g.images * g.positions() * g.outputs), kElement);
  const Packed packed(packed_as, kElement, w.data());
  const FollowedResult result = convolve_tiles({.geometry = g,
                                                .element = kElement,
                                                .input = x.data(),
                                                .groups = groups,
                                                .packed = packed.data(),
                                                .output = y.data()});
  output = widened(y, kElement);
  return result == FollowedResult::kMade;
}

TEST_CASE("convolutions on tiles, of groups that are joined until tiles are whole") {
  if (!has_tiles()) return;
  struct Groups {
    int64_t channels, outputs, groups, sets;
  };
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const Groups& it : {Groups{128, 128, 32, 4}, Groups{64, 64, 2, 2}, Groups{64, 128, 4, 2}, Groups{96, 96, 6, 3},
                             Groups{128, 64, 4, 2}, Groups{32, 32, 16, 1}}) {
      for (const int64_t side : {3, 20}) {
        for (const int64_t stride : {1, 2}) {
          Geometry g = square(2, it.channels, side, 3, stride, 1);
          g.outputs = it.outputs;
          INFO(text(g) << " groups " << it.groups);
          REQUIRE(tile_sets(g, it.groups, Element::kBfloat16) == it.sets);
          const int64_t channels = it.channels / it.groups, outputs = it.outputs / it.groups;
          const std::vector<float> input =
              widened(stored(numbers(g.images * g.pixels() * g.channels, 1), Element::kBfloat16), Element::kBfloat16);
          const std::vector<float> weight =
              widened(stored(numbers(g.outputs * g.kernel() * channels, 2), Element::kBfloat16), Element::kBfloat16);
          std::vector<float> output;
          REQUIRE(convolve_groups(g, it.groups, input, weight, output));
          size_t different = 0;
          for (int64_t row = 0; row < g.images * g.positions(); ++row) {
            for (int64_t n = 0; n < g.outputs; ++n) {
              double sum = 0;
              for (int64_t point = 0; point < g.kernel(); ++point) {
                const int64_t pixel = pixel_at(g, row, point);
                for (int64_t c = 0; c < channels && pixel >= 0; ++c) {
                  sum += double{input[static_cast<size_t>(pixel * g.channels + n / outputs * channels + c)]} *
                         weight[static_cast<size_t>((n * g.kernel() + point) * channels + c)];
                }
              }
              const double found = output[static_cast<size_t>(row * g.outputs + n)];
              different += !(std::abs(found - sum) <= 0.05 * std::max(1.0, std::abs(sum)));
            }
          }
          REQUIRE(different == 0);
          // Another group's zeros would make it a NaN.
          for (const float no_number : {INFINITY, -INFINITY, NAN}) {
            std::vector<float> changed = input;
            changed[changed.size() / 2] = no_number;
            REQUIRE(convolve_groups(g, it.groups, changed, weight, output) == (it.sets == it.groups));
          }
        }
      }
    }
  }
}

TEST_CASE("groups that tiles cannot have, or that would be zeros for the most part, have no sets") {
  const auto sets = [](int64_t channels, int64_t outputs, int64_t groups, Element element) {
    Geometry g = square(1, channels, 8, 3, 1, 1);
    g.outputs = outputs;
    return tile_sets(g, groups, element);
  };
  CHECK(sets(128, 128, 32, Element::kBfloat16) == 4);
  CHECK(sets(128, 128, 32, Element::kFloat32) == 0);
  CHECK(sets(128, 128, 32, Element::kFloat16) == 0);
  CHECK(sets(64, 64, 64, Element::kBfloat16) == 0);  // depthwise: 32 together
  CHECK(sets(48, 48, 12, Element::kBfloat16) == 0);
  CHECK(sets(128, 32, 4, Element::kBfloat16) == 1);
  CHECK(sets(40, 40, 2, Element::kBfloat16) == 0);
}

TEST_CASE("convolutions on tiles, of signals and of blocks of lines") {
  if (!has_tiles()) return;
  const Threads pool(2);
  check(
      {.images = 2, .channels = 64, .width = 300, .outputs = 64, .kernel_width = 3, .padding_x = 16, .dilation_x = 8});
  // Lines for several blocks.
  check({.images = 1,
         .channels = 96,
         .height = 60,
         .width = 90,
         .outputs = 32,
         .kernel_height = 3,
         .kernel_width = 3,
         .padding_y = 1,
         .padding_x = 1});
  // Few outputs, which threads share by panels.
  check({.images = 1,
         .channels = 256,
         .height = 4,
         .width = 4,
         .outputs = 160,
         .kernel_height = 3,
         .kernel_width = 3,
         .padding_y = 1,
         .padding_x = 1});
}

TEST_CASE("kernels that reach far do not fit tiles") {
  if (!has_tiles()) return;
  const Geometry signal{.channels = 64, .width = 1024, .outputs = 64, .kernel_width = 3, .padding_x = 2048};
  for (const int64_t dilation : {1, 128, 2048}) {
    Geometry g = signal;
    g.dilation_x = dilation;
    INFO(text(g));
    CHECK(fits_tiles(g, Element::kFloat32) == (dilation < 2048));
  }
  CHECK(!fits_tiles({.channels = 48, .height = 9, .width = 9}, Element::kBfloat16));
}

TEST_CASE("convolutions on tiles refuse what planes cannot have") {
  if (!has_tiles()) return;
  const Geometry g{.channels = 32, .height = 12, .width = 20, .outputs = 32, .kernel_height = 3, .kernel_width = 3};
  const int64_t k = g.kernel() * g.channels;
  std::vector<float> input = numbers(g.pixels() * g.channels, 1), output = unset(g.positions() * g.outputs);
  const std::vector<float> weight = numbers(g.outputs * k, 2);
  const Packed packed(g, Element::kFloat32, weight.data());
  const TileConvolution call{.geometry = g, .input = input.data(), .packed = packed.data(), .output = output.data()};
  REQUIRE(convolve_tiles(call) == FollowedResult::kMade);
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    input[500] = value;
    REQUIRE(convolve_tiles(call) == FollowedResult::kOutOfRange);
  }
}

TEST_CASE("convolutions on tiles, of groups and with a follower") {
  if (!has_tiles()) return;
  Geometry g = square(2, 64, 30, 3, 1, 1);
  g.outputs = 64;
  const Packed packed({.channels = 32, .outputs = 64, .kernel_height = 3, .kernel_width = 3}, Element::kBfloat16,
                      stored(numbers(64 * 9 * 32, 2), Element::kBfloat16).data());
  std::vector<float> values = numbers(g.images * g.pixels() * g.channels, 1);
  for (const bool has_infinity : {false, true}) {
    if (has_infinity) values.back() = INFINITY;  // in the last block
    const std::vector<std::byte> input = stored(values, Element::kBfloat16);
    const int64_t entries = g.images * g.positions() * g.outputs;
    std::vector<uint16_t> alone(static_cast<size_t>(entries)), output(alone), copied(alone);
    TileConvolution call{.geometry = g,
                         .element = Element::kBfloat16,
                         .input = input.data(),
                         .groups = 4,
                         .packed = packed.data(),
                         .output = alone.data()};
    REQUIRE(convolve_tiles(call) == (has_infinity ? FollowedResult::kOutOfRange : FollowedResult::kMade));
    testing::KernelBuilder b;
    const uint16_t x = b.load(0, 2);
    b.store(1, x);
    FusedLaunch launch;
    REQUIRE(prepare_fused(b.kernel, testing::dense_space({entries / g.outputs, g.outputs}, 0, 2, 2), launch).ok());
    void* operands[] = {output.data(), copied.data()};
    const Follower follower(launch, operands, nullptr, 0, false);
    call.output = output.data();
    call.follower = &follower;
    REQUIRE(convolve_tiles(call) == (has_infinity ? FollowedResult::kOutOfRange : FollowedResult::kFollowed));
    if (!has_infinity) REQUIRE(copied == alone);
  }
}

TEST_CASE("convolutions on tiles with a follower") {
  if (!has_tiles()) return;
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const Geometry& g :
         {Geometry{.images = 2,
         .channels = 32,
         .height = 30,
         .width = 20,
         .outputs = 40,
         .kernel_height = 3,
         .kernel_width = 3,
         .padding_y = 1},
          Geometry{.channels = 64, .width = 500, .outputs = 64, .kernel_width = 3, .padding_x = 8, .dilation_x = 8}}) {
      const int64_t k = g.kernel() * g.channels;
      const std::vector<float> input = numbers(g.images * g.pixels() * g.channels, 1), w = numbers(g.outputs * k, 2);
      const Packed packed(g, Element::kFloat32, w.data());
      check_follower(g, [&](float* output, const Follower* follower) {
        return convolve_tiles(
            {.geometry = g, .input = input.data(), .packed = packed.data(), .output = output, .follower = follower});
      });
    }
  }
}

TEST_CASE("convolutions on tiles limit what they store") {
  if (!has_tiles()) return;
  for (const int64_t outputs : {32, 40}) {
    const Geometry g{
        .channels = 32, .height = 9, .width = 21, .outputs = outputs, .kernel_height = 3, .kernel_width = 3};
    const int64_t k = g.kernel() * g.channels;
    for (const Element element : {Element::kFloat32, Element::kBfloat16}) {
      const std::vector<std::byte> x = stored(numbers(g.pixels() * g.channels, 1), element);
      const std::vector<std::byte> w = stored(numbers(outputs * k, 2), element);
      const Packed packed(g, element, w.data());
      const auto run = [&](float* output, const Limits& limits) {
        std::vector<std::byte> y = stored(unset(g.positions() * outputs), element);
        REQUIRE(convolve_tiles({.geometry = g,
                                .element = element,
                                .input = x.data(),
                                .packed = packed.data(),
                                .output = y.data(),
                                .limits = limits}) == FollowedResult::kMade);
        std::ranges::copy(widened(y, element), output);
      };
      check_limits(g.positions() * outputs, run, element != Element::kFloat32);
    }
  }
}

}  // namespace
}  // namespace hetero::backend
