// Convolutions as products of patches against the definition in double.

#include "backend/cpu/convolution/patches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/kernels/panel_gemm.h"
#include "tests/backend/cpu/convolution/definition.h"
#include "tests/backend/cpu/convolution/follower.h"
#include "tests/backend/cpu/kernels/limits_check.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Geometry = ConvolutionGeometry;

// Where in the images row `row` of the matrix has its element `i`; -1 outside.
int64_t source_of(const Geometry& g, int64_t row, int64_t i) {
  const int64_t pixel = pixel_at(g, row, i / g.channels);
  return pixel < 0 ? -1 : pixel * g.channels + i % g.channels;
}

void multiply_plainly(const Matvec& call) {
  for (int64_t row = 0; row < call.m; ++row) {
    for (int64_t n = 0; n < call.n; ++n) {
      double sum = call.bias == nullptr ? 0 : static_cast<const float*>(call.bias)[n];
      for (int64_t k = 0; k < call.k; ++k) {
        sum += double{static_cast<const float*>(call.x)[row * call.x_stride + k]} *
               static_cast<const float*>(call.w)[n * call.w_stride + k];
      }
      static_cast<float*>(call.y)[row * call.y_stride + n] = static_cast<float>(sum);
    }
  }
}

void check(const Geometry& g) {
  INFO(text(g));
  const int64_t k = g.kernel() * g.channels, m = g.images * g.positions();
  const std::vector<float> input = numbers(g.images * g.pixels() * g.channels, 1);
  const std::vector<float> weight = numbers(g.outputs * k, 2), bias = numbers(g.outputs, 3);
  std::vector<float> output = unset(m * g.outputs);
  const Matvec call{.n = g.outputs,
                    .k = k,
                    .w = weight.data(),
                    .w_stride = k,
                    .bias = bias.data(),
                    .y = output.data(),
                    .y_stride = g.outputs};
  convolve_patches(g, input.data(), call, &multiply_plainly);
  size_t different = 0;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t n = 0; n < g.outputs; ++n) {
      double sum = bias[static_cast<size_t>(n)];
      for (int64_t i = 0; i < k; ++i) {
        const int64_t source = source_of(g, row, i);
        if (source >= 0) sum += double{input[static_cast<size_t>(source)]} * weight[static_cast<size_t>(n * k + i)];
      }
      different += !(std::abs(output[static_cast<size_t>(row * g.outputs + n)] - sum) <= 1e-4);
    }
  }
  REQUIRE(different == 0);
}

TEST_CASE("patches of every geometry") {
  for (const int64_t side : {1, 4, 7, 12}) {
    for (const int64_t kernel : {1, 2, 3, 5}) {
      for (const int64_t stride : {1, 2, 3}) {
        for (const int64_t padding : {0, 1, 6}) {
          for (const int64_t dilation : {1, 2, 3}) {
            if (side + 2 * padding <= dilation * (kernel - 1)) continue;
            check({.images = 2,
                   .channels = 3,
                   .height = side,
                   .width = side + 1,
                   .outputs = 2,
                   .kernel_height = kernel,
                   .kernel_width = std::max<int64_t>(1, kernel - 1),
                   .stride_y = stride,
                   .stride_x = stride,
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

TEST_CASE("patches of signals, and more of them than a block has") {
  for (const int64_t length : {1, 9, 200}) {
    check({.images = 3,
           .channels = 8,
           .width = length,
           .outputs = 5,
           .kernel_width = 4,
           .padding_x = 6,
           .dilation_x = 2});
  }
  // Rows of a power of two, whose distance is another one; and a weight too large for small blocks.
  check({.images = 2, .channels = 256, .height = 9, .width = 9, .outputs = 4, .kernel_height = 2, .kernel_width = 2});
  check({.images = 1, .channels = 300, .height = 8, .width = 8, .outputs = 100, .kernel_height = 3, .kernel_width = 3});
}

TEST_CASE("patches of elements of 2 bytes are those of 4, cut") {
  const Geometry g{.images = 2,
                   .channels = 3,
                   .height = 5,
                   .width = 6,
                   .outputs = 1,
                   .kernel_height = 3,
                   .kernel_width = 3,
                   .stride_x = 2,
                   .padding_y = 1,
                   .padding_x = 2};
  const int64_t k = g.kernel() * g.channels, m = g.images * g.positions();
  std::vector<uint16_t> input(static_cast<size_t>(g.images * g.pixels() * g.channels));
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<uint16_t>(i + 1);
  const int64_t pitch = 2 * k + 6, first = 3;
  std::vector<std::byte> rows(static_cast<size_t>((m - first) * pitch));
  gather_patches(g, 2, input.data(), first, m - first, rows.data(), pitch);
  for (int64_t row = first; row < m; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      uint16_t found = 0;
      std::memcpy(&found, rows.data() + (row - first) * pitch + 2 * i, 2);
      const int64_t source = source_of(g, row, i);
      REQUIRE(found == (source < 0 ? 0 : source + 1));
    }
  }
}

TEST_CASE("products of patches with a follower, on several threads") {
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const int64_t kernel : {1, 3}) {
      const Geometry g{.images = 2,
                       .channels = 6,
                       .height = 19,
                       .width = 23,
                       .outputs = 10,
                       .kernel_height = kernel,
                       .kernel_width = kernel};
      const int64_t k = g.kernel() * g.channels;
      const std::vector<float> input = numbers(g.images * g.pixels() * g.channels, 1), w = numbers(g.outputs * k, 2);
      check_follower(g, [&](float* output, const Follower* follower) {
        const Matvec call{.n = g.outputs, .k = k, .w = w.data(), .w_stride = k, .y = output, .y_stride = g.outputs};
        const bool followed = convolve_patches(g, input.data(), call, &multiply_plainly, follower);
        return followed ? FollowedResult::kFollowed : FollowedResult::kMade;
      });
    }
  }
}

// A convolution of groups, and its operands.
struct Grouped {
  Geometry g;
  int64_t groups;
  Element element;
  InstructionSet set;
  std::vector<float> input, weight, bias;  // as the elements have them
  std::vector<std::byte> input_bytes, bias_bytes;
  std::vector<std::byte> packed;

  Grouped(const Geometry& geometry, int64_t group_count, Element type, InstructionSet instructions = instruction_set())
      : g(geometry), groups(group_count), element(type), set(instructions) {
    const int64_t channels = g.channels / groups, outputs = g.outputs / groups, k = g.kernel() * channels;
    input = numbers(g.images * g.pixels() * g.channels, 1);
    weight = numbers(g.outputs * k, 2);
    bias = numbers(g.outputs, 3);
    input_bytes = bytes_of(input);
    bias_bytes = bytes_of(bias);
    const std::vector<std::byte> weight_bytes = bytes_of(weight);
    const int64_t bytes = panel_weight_bytes(element, outputs, k, set);
    packed.resize(static_cast<size_t>(groups * bytes + 64));
    for (int64_t i = 0; i < groups; ++i) {
      const Matvec call{.element = element,
                        .n = outputs,
                        .k = k,
                        .w = weight_bytes.data() + i * outputs * k * element_bytes(element),
                        .w_stride = k};
      pack_panel_weight(call, packed_memory() + i * bytes, set);
    }
  }

  std::byte* packed_memory() {
    const auto address = reinterpret_cast<uintptr_t>(packed.data());
    return packed.data() + (64 - address % 64) % 64;
  }
  // The values are rounded to what the elements can have.
  std::vector<std::byte> bytes_of(std::vector<float>& values) const {
    std::vector<std::byte> made = stored(values, element);
    values = widened(made, element);
    return made;
  }
  // With each channel's pixels together.
  std::vector<std::byte> input_planes() const {
    std::vector<float> planes;
    for (int64_t image = 0; image < g.images; ++image) {
      for (int64_t channel = 0; channel < g.channels; ++channel) {
        for (int64_t pixel = 0; pixel < g.pixels(); ++pixel) {
          planes.push_back(input[static_cast<size_t>((image * g.pixels() + pixel) * g.channels + channel)]);
        }
      }
    }
    return stored(planes, element);
  }
  FollowedResult run(void* output, const Follower* follower = nullptr, bool has_bias = true, bool in_planes = false,
                     bool out_planes = false, const Limits& limits = {}) {
    const std::vector<std::byte> planes = in_planes ? input_planes() : std::vector<std::byte>();
    return convolve_direct({.geometry = g,
                            .groups = groups,
                            .element = element,
                            .input = in_planes ? planes.data() : input_bytes.data(),
                            .input_planes = in_planes,
                            .output_planes = out_planes,
                            .packed = packed_memory(),
                            .bias = has_bias ? bias_bytes.data() : nullptr,
                            .output = output,
                            .limits = limits,
                            .follower = follower},
                           set);
  }
};

void check_direct(const Geometry& g, int64_t groups, Element element, InstructionSet set) {
  INFO(text(g) << " groups " << groups << " element " << static_cast<int>(element) << ' ' << to_string(set));
  const bool by_pixels = fits_direct(g, groups, element, false, set);
  if (!by_pixels && !fits_direct(g, groups, element, true, set)) return;
  Grouped call(g, groups, element, set);
  const int64_t channels = g.channels / groups, outputs = g.outputs / groups, k = g.kernel() * channels;
  const int64_t m = g.images * g.positions();
  std::vector<std::byte> made(static_cast<size_t>(m * g.outputs * element_bytes(element)), std::byte{0xff});
  call.run(made.data(), nullptr, true, !by_pixels);
  const std::vector<float> output = widened(made, element);
  const double relative = element == Element::kFloat32 ? 0 : element == Element::kBfloat16 ? 0x1p-7 : 0x1p-10;
  size_t different = 0;
  std::vector<float> patch(static_cast<size_t>(groups * k));  // of each group
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t point = 0; point < g.kernel(); ++point) {
      const int64_t pixel = pixel_at(g, row, point);
      for (int64_t c = 0; c < g.channels; ++c) {
        const int64_t to = c / channels * k + point * channels + c % channels;
        patch[static_cast<size_t>(to)] = pixel < 0 ? 0 : call.input[static_cast<size_t>(pixel * g.channels + c)];
      }
    }
    for (int64_t n = 0; n < g.outputs; ++n) {
      double sum = call.bias[static_cast<size_t>(n)];
      const float* const x = patch.data() + n / outputs * k;
      const float* const w = call.weight.data() + n * k;
      for (int64_t i = 0; i < k; ++i) sum += double{x[i]} * w[i];
      const double error = std::abs(output[static_cast<size_t>(row * g.outputs + n)] - sum);
      different += !(error <= 1e-4 + 2e-6 * std::sqrt(static_cast<double>(k)) + relative * std::abs(sum));
    }
  }
  REQUIRE(different == 0);
  // The same bits in other layouts.
  for (const bool in_planes : {false, true}) {
    if (!fits_direct(g, groups, element, in_planes, set)) continue;
    for (const int64_t threads : {1, 3}) {
      const Threads scope(threads);
      std::vector<std::byte> pixels(made.size(), std::byte{0xff});
      call.run(pixels.data(), nullptr, true, in_planes);
      REQUIRE(pixels == made);
      std::vector<std::byte> planes(made.size(), std::byte{0xff});
      call.run(planes.data(), nullptr, true, in_planes, true);
      const std::vector<float> there = widened(planes, element);
      different = 0;
      for (int64_t row = 0; row < m; ++row) {
        for (int64_t n = 0; n < g.outputs; ++n) {
          const int64_t place = (row / g.positions() * g.outputs + n) * g.positions() + row % g.positions();
          different += there[static_cast<size_t>(place)] != output[static_cast<size_t>(row * g.outputs + n)];
        }
      }
      REQUIRE(different == 0);
    }
  }
}

TEST_CASE("few channels by lines of padded images") {
  const auto set = GENERATE(InstructionSet::kAvx2, InstructionSet::kAvx512);
  if (set > instruction_set()) return;
  for (const Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
    for (const int64_t channels : {1, 2, 3, 8}) {
      for (const int64_t kernel : {1, 3, 7}) {
        for (const int64_t stride : {1, 2, 4}) {
          for (const int64_t padding : {0, 3, 20}) {
            check_direct({.images = 2,
                          .channels = channels,
                          .height = 9,
                          .width = 23,
                          .outputs = 19,
                          .kernel_height = kernel,
                          .kernel_width = kernel,
                          .stride_y = stride,
                          .stride_x = stride,
                          .padding_y = padding / 2,
                          .padding_x = padding,
                          .dilation_y = kernel == 3 ? 2 : 1},
                         1, element, set);
          }
        }
      }
      // A long signal, and images that threads share.
      check_direct({.channels = channels, .width = 3000, .outputs = 5, .kernel_width = 10, .stride_x = 5}, 1, element,
                   set);
      check_direct({.channels = channels,
                    .height = 40,
                    .width = 50,
                    .outputs = 33,
                    .kernel_height = 3,
                    .kernel_width = 3,
                    .padding_y = 1,
                    .padding_x = 1},
                   1, element, set);
    }
  }
}

TEST_CASE("many channels, of copies where they are in planes") {
  const auto set = GENERATE(InstructionSet::kAvx2, InstructionSet::kAvx512);
  if (set > instruction_set()) return;
  for (const Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
    for (const int64_t dilation : {1, 5}) {
      for (const int64_t channels : {11, 16, 42}) {
        check_direct({.images = 3,
                      .channels = channels,
                      .height = 4,
                      .width = 17,
                      .outputs = 36,
                      .kernel_height = 2,
                      .kernel_width = 3,
                      .padding_y = 1,
                      .padding_x = 7,
                      .dilation_x = dilation},
                     1, element, set);
      }
      check_direct({.channels = 16, .width = 2500, .outputs = 5, .kernel_width = 3, .dilation_x = dilation}, 1, element,
                   set);
      // Pieces that are too long for a panel.
      check_direct({.channels = 700, .width = 20, .outputs = 5, .kernel_width = 3, .dilation_x = dilation}, 1, element,
                   set);
    }
    check_direct({.images = 2, .channels = 42, .height = 9, .width = 5, .outputs = 70}, 1, element, set);
  }
}

TEST_CASE("few channels of more images than are copied together, and a weight larger than a cache") {
  if (!has_panels()) return;
  check_direct({.images = 5,
                .channels = 3,
                .height = 300,
                .width = 310,
                .outputs = 2,
                .kernel_height = 3,
                .kernel_width = 3,
                .padding_y = 1,
                .padding_x = 1},
               1, Element::kFloat32, instruction_set());
  // Results of more rows than are turned at a time.
  check_direct({.images = 2, .channels = 1, .width = 900, .outputs = 2200, .kernel_width = 128, .stride_x = 2}, 1,
               Element::kFloat32, instruction_set());
}

TEST_CASE("images too large to be copied are none of few channels") {
  if (!has_panels()) return;
  Geometry g{.channels = 3,
             .height = int64_t{1} << 40,
             .width = int64_t{1} << 40,
             .outputs = 4,
             .kernel_height = 3,
             .kernel_width = 3,
             .stride_y = int64_t{1} << 38,
             .stride_x = int64_t{1} << 38};
  REQUIRE_FALSE(fits_direct(g, 1, Element::kFloat32, true));
}

TEST_CASE("groups of channels by the addresses of pixels") {
  const auto set = GENERATE(InstructionSet::kAvx2, InstructionSet::kAvx512);
  if (set > instruction_set()) return;
  for (const Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
    for (const int64_t groups : {1, 3}) {
      for (const int64_t channels : {1, 4, 10}) {
        for (const int64_t outputs : {1, 4, 8, 21, 48}) {
          for (const int64_t stride : {1, 2}) {
            for (const int64_t dilation : {1, 3}) {
              check_direct({.images = 2,
                            .channels = groups * channels,
                            .height = 5,
                            .width = 8,
                            .outputs = groups * outputs,
                            .kernel_height = 3,
                            .kernel_width = 2,
                            .stride_y = stride,
                            .stride_x = 1,
                            .padding_y = 4,
                            .padding_x = stride,
                            .dilation_y = dilation,
                            .dilation_x = dilation},
                           groups, element, set);
            }
          }
        }
      }
    }
    // A signal, and a stride beyond the image.
    check_direct({.images = 2, .channels = 8, .width = 30, .outputs = 6, .kernel_width = 4, .padding_x = 6}, 2, element,
                 set);
    check_direct({.channels = 4,
                  .height = 3,
                  .width = 3,
                  .outputs = 4,
                  .kernel_height = 3,
                  .kernel_width = 3,
                  .stride_y = int64_t{1} << 31,
                  .stride_x = int64_t{1} << 31},
                 1, element, set);
    // Sums over more than a part of a panel.
    check_direct({.channels = element == Element::kFloat32 ? 1040 : 2080,
                  .height = 4,
                  .width = 5,
                  .outputs = 40,
                  .kernel_height = 3,
                  .kernel_width = 3,
                  .padding_y = 1,
                  .padding_x = 1},
                 2, element, set);
  }
}

TEST_CASE("a group knows nothing of the others' values") {
  if (!has_panels()) return;
  Grouped call({.channels = 8,
                .height = 3,
                .width = 3,
                .outputs = 8,
                .kernel_height = 3,
                .kernel_width = 3,
                .padding_y = 1,
                .padding_x = 1},
               2, Element::kFloat32);
  std::vector<float> expected = unset(9 * 8), made = expected;
  call.run(expected.data());
  auto* const input = reinterpret_cast<float*>(call.input_bytes.data());
  for (int64_t pixel = 0; pixel < 9; ++pixel) input[pixel * 8 + 5] = INFINITY;
  call.run(made.data());
  for (size_t i = 0; i < made.size(); ++i) {
    if (i % 8 < 4) REQUIRE(made[i] == expected[i]);
  }
}

TEST_CASE("direct convolutions with a follower, on several threads") {
  if (!has_panels()) return;
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const int64_t groups : {1, 2}) {
      const Geometry g{
          .images = 2, .channels = 6, .height = 19, .width = 23, .outputs = 10, .kernel_height = 3, .kernel_width = 3};
      Grouped call(g, groups, Element::kFloat32);
      check_follower(g, [&](float* output, const Follower* follower) { return call.run(output, follower, false); });
    }
  }
}

TEST_CASE("direct convolutions limit what they store") {
  if (!has_panels()) return;
  for (const int64_t groups : {1, 2}) {
    for (const bool planes : {false, true}) {
      if (planes && groups > 1) continue;
      // So many channels are cut into parts, whose sums are not limited.
      const int64_t channels = planes ? 6 : 600;
      const Geometry g{.images = 2,
                       .channels = channels,
                       .height = 9,
                       .width = 7,
                       .outputs = 10,
                       .kernel_height = 3,
                       .kernel_width = 3};
      Grouped call(g, groups, Element::kFloat32);
      check_limits(g.images * g.positions() * g.outputs, [&](float* output, const Limits& limits) {
        call.run(output, nullptr, true, planes, planes, limits);
      });
    }
  }
}

TEST_CASE("pixels that are spread") {
  for (const int64_t threads : {1, 3}) {
    const Threads pool(threads);
    for (const int64_t height : {1, 5}) {
      for (const int64_t kernel : {1, 2, 3}) {
        const int64_t images = 2, width = 7, channels = 6, outputs = 4, n = kernel * outputs;
        // As a convolution of one pixel's kernel to all that a pixel makes.
        const Geometry g{
            .images = images, .channels = channels, .height = height, .width = width, .outputs = kernel * n};
        const std::vector<float> input = numbers(images * g.pixels() * channels, 1),
                                 w = numbers(g.outputs * channels, 2);
        std::vector<float> patches = unset(images * g.pixels() * g.outputs), expected = patches;
        convolve_patches(g, input.data(),
                         {.n = g.outputs,
                          .k = channels,
                          .w = w.data(),
                          .w_stride = channels,
                          .y = patches.data(),
                          .y_stride = g.outputs},
                         &multiply_plainly);
        for (int64_t line = 0; line < images * height; ++line) {
          for (int64_t x = 0; x < width; ++x) {
            for (int64_t row = 0; row < kernel; ++row) {
              std::copy_n(patches.begin() + (line * width + x) * g.outputs + row * n, n,
                          expected.begin() + ((line * kernel + row) * width + x) * n);
            }
          }
        }
        std::vector<float> output = unset(images * g.pixels() * g.outputs);
        const PixelSpread spread{
            .images = images, .height = height, .width = width, .kernel_height = kernel, .row_bytes = n * channels * 4};
        const Matvec call{.n = n, .k = channels, .w_stride = channels, .packed = w.data(), .y = output.data()};
        const auto multiply = [](const Matvec& part) {
          Matvec plain = part;
          plain.w = part.packed;
          multiply_plainly(plain);
        };
        spread_pixels(spread, input.data(), call, multiply);
        REQUIRE(output == expected);
        std::vector<float> unwanted = unset(images * g.pixels() * g.outputs);
        Doubling doubling(images * height * kernel * width, n, unwanted.data(), false);
        Matvec followed = call;
        followed.y = unwanted.data();
        REQUIRE(spread_pixels(spread, input.data(), followed, multiply, &*doubling.follower));
        size_t different = 0;
        for (size_t i = 0; i < expected.size(); ++i) different += doubling.doubled[i] != 2 * expected[i];
        REQUIRE(different == 0);
      }
    }
  }
}

}  // namespace
}  // namespace hetero::backend
