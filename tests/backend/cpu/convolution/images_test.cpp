// Maxima, layouts and concatenations of images against their definitions.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/convolution/image_layout.h"
#include "backend/cpu/convolution/max_pool.h"
#include "backend/cpu/convolution/pixel_mean.h"
#include "backend/cpu/resize/bilinear.h"
#include "tests/backend/cpu/convolution/definition.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Geometry = ConvolutionGeometry;

constexpr Element kElements[] = {Element::kFloat32, Element::kBfloat16, Element::kFloat16};

void check(const Geometry& g, const std::vector<float>& numbers) {
  for (const Element element : kElements) {
    const std::vector<std::byte> input = stored(numbers, element);
    const std::vector<float> values = widened(input, element);
    for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
      if (set > instruction_set()) continue;
      INFO(text(g) << " element " << static_cast<int>(element) << " set " << static_cast<int>(set));
      const int64_t count = g.images * g.positions() * g.channels;
      std::vector<std::byte> output(static_cast<size_t>(count * element_bytes(element)));
      std::vector<int64_t> places(static_cast<size_t>(count), -1);
      max_pool({.geometry = g,
                .out_height = g.out_height(),
                .out_width = g.out_width(),
                .element = element,
                .input = input.data(),
                .output = output.data(),
                .places = places.data()},
               set);
      const std::vector<float> largest = widened(output, element);
      size_t different = 0;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t position = i / g.channels, channel = i % g.channels;
        float best = 0;
        int64_t place = -1;
        for (int64_t point = 0; point < g.kernel(); ++point) {
          const int64_t pixel = pixel_at(g, position, point);
          if (pixel < 0) continue;
          const float value = values[static_cast<size_t>(pixel * g.channels + channel)];
          if (place >= 0 && !(value > best || std::isnan(value))) continue;
          best = value;
          place = pixel % g.pixels();
        }
        const auto at = static_cast<size_t>(i);
        const bool same = std::isnan(best) ? std::isnan(largest[at]) : largest[at] == best;
        different += !same || places[at] != place;
      }
      REQUIRE(different == 0);
    }
  }
}

TEST_CASE("maxima of every geometry") {
  for (const int64_t kernel : {1, 2, 3}) {
    for (const int64_t stride : {1, 2, 3}) {
      for (const int64_t dilation : {1, 2}) {
        for (const int64_t channels : {1, 3, 64, 150}) {
          const Geometry g{.images = 2,
                           .channels = channels,
                           .height = 9,
                           .width = 11,
                           .outputs = channels,
                           .kernel_height = kernel,
                           .kernel_width = kernel,
                           .stride_y = stride,
                           .stride_x = stride,
                           .padding_y = kernel / 2,
                           .padding_x = kernel / 2,
                           .dilation_y = dilation,
                           .dilation_x = dilation};
          check(g, numbers(g.images * g.pixels() * channels, 1));
        }
      }
    }
  }
}

TEST_CASE("maxima of equal values, infinite ones, and those that are no number") {
  const Geometry g{.channels = 20, .height = 12, .width = 12, .outputs = 20, .kernel_height = 3, .kernel_width = 3};
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const float values[] = {0, -0.0f, 1, 1, -1, kInfinite, -kInfinite, std::nanf(""), 6e-8f, -6e-8f, 65504};
  std::vector<float> input(static_cast<size_t>(g.pixels() * g.channels));
  std::mt19937 random(1);
  for (float& value : input) value = values[random() % std::size(values)];
  check(g, input);
  check(g, std::vector<float>(input.size(), -kInfinite));
}

TEST_CASE("means over pixels") {
  for (const int64_t channels : {1, 15, 64, 100, 400}) {
    for (const int64_t pixels : {1, 7, 256, 3000}) {
      const std::vector<float> from = numbers(2 * pixels * channels, 5);
      for (const Element element : kElements) {
        const std::vector<std::byte> input = stored(from, element);
        const std::vector<float> values = widened(input, element);
        for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
          if (set > instruction_set()) continue;
          std::vector<std::byte> first;
          for (const int64_t threads : {1, 3}) {
            const Threads pool(threads);
            std::vector<std::byte> output(static_cast<size_t>(2 * channels * element_bytes(element)));
            pixel_means(element, input.data(), 2, pixels, channels, output.data(), set);
            const std::vector<float> means = widened(output, element);
            size_t different = 0;
            for (int64_t i = 0; i < 2 * channels; ++i) {
              double sum = 0;
              for (int64_t pixel = 0; pixel < pixels; ++pixel) {
                sum += values[static_cast<size_t>((i / channels * pixels + pixel) * channels + i % channels)];
              }
              const double mean = sum / static_cast<double>(pixels);
              const double most = element == Element::kFloat32 ? 1e-6 : 0.005 * std::abs(mean) + 1e-6;
              different += !(std::abs(means[static_cast<size_t>(i)] - mean) <= most);
            }
            REQUIRE(different == 0);
            if (threads == 1) first = output;
            const bool same = first == output;
            REQUIRE(same);
          }
        }
      }
    }
  }
}

TEST_CASE("images resized by bilinear interpolation") {
  struct Sizes {
    int64_t height, width, out_height, out_width;
  };
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
      if (set > instruction_set()) continue;
      for (const Sizes& s : {Sizes{1, 1, 3, 5}, Sizes{5, 7, 5, 7}, Sizes{4, 3, 9, 12}, Sizes{20, 31, 7, 1}}) {
        for (const int64_t channels : {1, 19, 300}) {
          for (const bool aligns_corners : {false, true}) {
            for (const Element element : kElements) {
              const std::vector<std::byte> input = stored(numbers(2 * s.height * s.width * channels, 1), element);
              const std::vector<float> values = widened(input, element);
              std::vector<std::byte> output = stored(unset(2 * s.out_height * s.out_width * channels + 1), element),
                                     before = output;
              const auto step = [&](int64_t size, int64_t out) {
                if (!aligns_corners) return static_cast<float>(size) / static_cast<float>(out);
                return out > 1 ? static_cast<float>(size - 1) / static_cast<float>(out - 1) : 0;
              };
              resize_bilinear({.images = 2,
                               .channels = channels,
                               .height = s.height,
                               .width = s.width,
                               .out_height = s.out_height,
                               .out_width = s.out_width,
                               .step_y = step(s.height, s.out_height),
                               .step_x = step(s.width, s.out_width),
                               .aligns_corners = aligns_corners,
                               .element = element,
                               .input = input.data(),
                               .output = output.data()},
                              set);
              const std::vector<float> made = widened(output, element);
              // Places outside are the nearest ones.
              const auto value = [&](int64_t image, double y, double x, int64_t c) {
                double sum = 0;
                for (const double row : {std::floor(y), std::floor(y) + 1}) {
                  for (const double column : {std::floor(x), std::floor(x) + 1}) {
                    const auto at = [](double place, int64_t size) {
                      return std::clamp<int64_t>(static_cast<int64_t>(place), 0, size - 1);
                    };
                    const int64_t pixel = (image * s.height + at(row, s.height)) * s.width + at(column, s.width);
                    sum += (1 - std::abs(y - row)) * (1 - std::abs(x - column)) *
                           values[static_cast<size_t>(pixel * channels + c)];
                  }
                }
                return sum;
              };
              const auto place = [&](int64_t out, float by) {
                return aligns_corners ? double{by} * static_cast<double>(out)
                                      : double{by} * (static_cast<double>(out) + 0.5) - 0.5;
              };
              size_t different = 0, i = 0;
              for (int64_t image = 0; image < 2; ++image) {
                for (int64_t y = 0; y < s.out_height; ++y) {
                  for (int64_t x = 0; x < s.out_width; ++x) {
                    for (int64_t c = 0; c < channels; ++c) {
                      const double expected =
                          value(image, place(y, step(s.height, s.out_height)), place(x, step(s.width, s.out_width)), c);
                      const double most = element == Element::kFloat32 ? 1e-5 : 0.005;
                      different += !(std::abs(made[i++] - expected) <= most);
                    }
                  }
                }
              }
              REQUIRE(different == 0);
              const auto item = static_cast<std::ptrdiff_t>(element_bytes(element));
              REQUIRE(std::equal(output.end() - item, output.end(), before.end() - item));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("images whose channels are put last") {
  for (const int64_t channels : {1, 2, 3, 4, 5, 64}) {
    for (const int64_t pixels : {1, 7, 5000}) {
      const int64_t images = 2, count = images * channels * pixels;
      const std::vector<float> from = numbers(count, 4);
      for (const Element element : kElements) {
        std::vector<float> expected(from.size());
        for (int64_t i = 0; i < count; ++i) {
          const int64_t image = i / (channels * pixels), channel = i / pixels % channels, pixel = i % pixels;
          expected[static_cast<size_t>((image * pixels + pixel) * channels + channel)] = from[static_cast<size_t>(i)];
        }
        std::vector<std::byte> to(static_cast<size_t>(count * element_bytes(element)));
        put_channels_last(from.data(), images, channels, pixels, element, to.data());
        const bool same = to == stored(expected, element);
        REQUIRE(same);
      }
    }
  }
}

TEST_CASE("concatenations of rows") {
  const int64_t rows = 1000;
  const int64_t widths[] = {1, 64, 7, 300};
  std::vector<std::vector<std::byte>> parts;
  std::vector<RowPiece> pieces;
  int64_t width = 0;
  for (const int64_t bytes : widths) {
    std::vector<std::byte>& part = parts.emplace_back(static_cast<size_t>(rows * bytes));
    for (size_t i = 0; i < part.size(); ++i) part[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(bytes));
    width += bytes;
  }
  for (size_t i = 0; i < parts.size(); ++i) pieces.push_back({parts[i].data(), widths[i]});
  std::vector<std::byte> to(static_cast<size_t>(rows * width));
  concatenate_rows(pieces, rows, to.data());
  size_t different = 0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t at = row * width;
    for (size_t i = 0; i < parts.size(); ++i) {
      different += std::memcmp(to.data() + at, parts[i].data() + row * widths[i], static_cast<size_t>(widths[i])) != 0;
      at += widths[i];
    }
  }
  REQUIRE(different == 0);
}

}  // namespace
}  // namespace hetero::backend
