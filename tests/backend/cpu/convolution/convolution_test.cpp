// Convolutions by products, and the layouts that they go through, against the definition in double.

#include "backend/cpu/convolution/convolution.h"

#include <cmath>
#include <vector>

#include "backend/base/parallel.h"
#include "tests/backend/cpu/convolution/definition.h"
#include "tests/backend/cpu/kernels/plain_gemm.h"
#include "tests/catch/catch.h"

namespace hetero::backend {
namespace {

using Geometry = ConvolutionGeometry;

const Geometry kGeometries[] = {
    {},
    {.images = 2, .channels = 3, .height = 5, .width = 7, .outputs = 4},
    {.channels = 3, .height = 9, .width = 9, .outputs = 4, .kernel_height = 3, .kernel_width = 3},
    {.images = 8,
     .channels = 5,
     .height = 4,
     .width = 4,
     .outputs = 6,
     .kernel_height = 3,
     .kernel_width = 3,
     .padding_y = 1,
     .padding_x = 1},
    {.images = 7,
     .channels = 20,
     .height = 2,
     .width = 2,
     .outputs = 33,
     .kernel_height = 3,
     .kernel_width = 3,
     .padding_y = 1,
     .padding_x = 1},
    {.images = 3,
     .channels = 4,
     .height = 8,
     .width = 20,
     .outputs = 5,
     .kernel_height = 3,
     .kernel_width = 3,
     .padding_y = 1,
     .padding_x = 1},
    {.images = 5,
     .channels = 2,
     .height = 11,
     .width = 6,
     .outputs = 3,
     .kernel_height = 3,
     .kernel_width = 2,
     .stride_y = 2,
     .stride_x = 2,
     .padding_y = 1,
     .padding_x = 0},
    {.images = 3,
     .channels = 3,
     .height = 40,
     .width = 37,
     .outputs = 17,
     .kernel_height = 7,
     .kernel_width = 7,
     .stride_y = 2,
     .stride_x = 2,
     .padding_y = 3,
     .padding_x = 3},
    {.images = 6, .channels = 3, .height = 9, .width = 8, .outputs = 4, .stride_y = 2, .stride_x = 3},
    {.images = 4,
     .channels = 3,
     .height = 9,
     .width = 11,
     .outputs = 4,
     .kernel_height = 2,
     .kernel_width = 3,
     .padding_y = 2,
     .padding_x = 4,
     .dilation_y = 3,
     .dilation_x = 4},
    // The kernel meets padding only, at some of its points everywhere.
    {.images = 5,
     .channels = 2,
     .height = 1,
     .width = 1,
     .outputs = 3,
     .kernel_height = 5,
     .kernel_width = 5,
     .padding_y = 2,
     .padding_x = 2},
    {.images = 2,
     .channels = 2,
     .height = 3,
     .width = 3,
     .outputs = 2,
     .kernel_height = 2,
     .kernel_width = 2,
     .stride_y = 5,
     .stride_x = 5,
     .padding_y = 4,
     .padding_x = 4},
    // One dimension.
    {.images = 3,
     .channels = 4,
     .height = 1,
     .width = 50,
     .outputs = 5,
     .kernel_width = 4,
     .stride_x = 3,
     .padding_x = 2},
    // Several groups of images and blocks of channels.
    {.images = 70,
     .channels = 9,
     .height = 8,
     .width = 9,
     .outputs = 5,
     .kernel_height = 3,
     .kernel_width = 3,
     .padding_y = 1,
     .padding_x = 1},
    {.images = 3,
     .channels = 70,
     .height = 16,
     .width = 16,
     .outputs = 3,
     .kernel_height = 3,
     .kernel_width = 3,
     .padding_y = 1,
     .padding_x = 1},
};

// Calls visit(position, point, pixel) wherever a point of the kernel meets a pixel of the image.
template <typename Visit>
void for_each_meeting(const Geometry& g, Visit&& visit) {
  for (int64_t position = 0; position < g.positions(); ++position) {
    for (int64_t point = 0; point < g.kernel(); ++point) {
      const int64_t pixel = pixel_at(g, position, point);
      if (pixel >= 0) visit(position, point, pixel);
    }
  }
}

bool close(const std::vector<float>& actual, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    // Written so that a NaN is not close.
    if (!(std::abs(actual[i] - expected[i]) <= 1e-4 + 1e-5 * std::abs(expected[i]))) return false;
  }
  return actual.size() == expected.size();
}

TEST_CASE("columns of a plane have the pixels that the kernel meets, and zeros") {
  for (const Geometry& g : kGeometries) {
    for (const int64_t lanes : {1, 3, 8}) {
      INFO(text(g) << " lanes " << lanes);
      const std::vector<float> plane = numbers(g.pixels() * lanes, 1);
      const int64_t stride = g.positions() * lanes + 5;
      std::vector<float> expected = unset(g.kernel() * stride), rows = expected;
      for (int64_t row = 0; row < g.kernel(); ++row) {
        std::fill_n(expected.begin() + row * stride, g.positions() * lanes, 0.0f);
      }
      for_each_meeting(g, [&](int64_t position, int64_t point, int64_t pixel) {
        for (int64_t lane = 0; lane < lanes; ++lane) {
          expected[point * stride + position * lanes + lane] = plane[pixel * lanes + lane];
        }
      });
      unfold(g, plane.data(), lanes, rows.data(), stride);
      size_t different = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        different += !(rows[i] == expected[i] || (std::isnan(rows[i]) && std::isnan(expected[i])));
      }
      REQUIRE(different == 0);
    }
  }
}

TEST_CASE("folding adds to each pixel what stands for it") {
  for (const Geometry& g : kGeometries) {
    for (const int64_t lanes : {1, 3, 8}) {
      INFO(text(g) << " lanes " << lanes);
      const int64_t stride = g.positions() * lanes + 5;
      std::vector<float> rows = numbers(g.kernel() * stride, 2);
      std::vector<double> expected(static_cast<size_t>(g.pixels() * lanes));
      for_each_meeting(g, [&](int64_t position, int64_t point, int64_t pixel) {
        for (int64_t lane = 0; lane < lanes; ++lane) {
          expected[pixel * lanes + lane] += rows[point * stride + position * lanes + lane];
        }
      });
      std::vector<float> plane = unset(g.pixels() * lanes);
      fold(g, rows.data(), stride, lanes, plane.data());
      REQUIRE(close(plane, expected));
    }
  }
}

TEST_CASE("interleaving and its reverse") {
  for (const int64_t lanes : {1, 2, 4, 7, 8, 13}) {
    for (const int64_t count : {0, 1, 5, 64}) {
      const int64_t stride = count + 3;
      const std::vector<float> planar = numbers(lanes * stride, 3);
      std::vector<float> interleaved = unset(lanes * count), back = planar;
      interleave(planar.data(), stride, lanes, count, interleaved.data());
      for (int64_t i = 0; i < lanes * count; ++i) {
        REQUIRE(interleaved[i] == planar[i % lanes * stride + i / lanes]);
      }
      for (int64_t lane = 0; lane < lanes; ++lane) std::fill_n(back.begin() + lane * stride, count, 0.0f);
      deinterleave(interleaved.data(), lanes, count, back.data(), stride);
      REQUIRE(back == planar);
    }
  }
}

// The convolution of random numbers, and its gradients for a random gradient of the output, by
// definition.
struct Reference {
  std::vector<float> input, weight, bias, grad_output;
  std::vector<double> output, grad_input, grad_weight, grad_bias;

  explicit Reference(const Geometry& g)
      : input(numbers(g.images * g.channels * g.pixels(), 4)),
        weight(numbers(g.outputs * g.channels * g.kernel(), 5)),
        bias(numbers(g.outputs, 6)),
        grad_output(numbers(g.images * g.outputs * g.positions(), 7)),
        output(grad_output.size()),
        grad_input(input.size()),
        grad_weight(weight.size()),
        grad_bias(bias.size()) {
    for (int64_t image = 0; image < g.images; ++image) {
      for (int64_t o = 0; o < g.outputs; ++o) {
        const int64_t out = (image * g.outputs + o) * g.positions();
        for (int64_t i = 0; i < g.positions(); ++i) grad_bias[o] += grad_output[out + i];
        for (int64_t c = 0; c < g.channels; ++c) {
          const int64_t in = (image * g.channels + c) * g.pixels(), w = (o * g.channels + c) * g.kernel();
          for_each_meeting(g, [&](int64_t position, int64_t point, int64_t pixel) {
            output[out + position] += static_cast<double>(input[in + pixel]) * weight[w + point];
            grad_input[in + pixel] += static_cast<double>(grad_output[out + position]) * weight[w + point];
            grad_weight[w + point] += static_cast<double>(grad_output[out + position]) * input[in + pixel];
          });
        }
      }
    }
  }
  std::vector<double> with_bias(const Geometry& g) const {
    std::vector<double> sums = output;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += bias[i / g.positions() % g.outputs];
    return sums;
  }
};

TEST_CASE("a convolution by products is right, on one thread and on several") {
  for (const Geometry& g : kGeometries) {
    const Reference reference(g);
    for (const bool several : {false, true}) {
      INFO(text(g) << (several ? " several threads" : ""));
      const Threads threads(several ? 3 : 1);
      REQUIRE(convolution_fits(g));
      std::vector<float> output = unset(static_cast<int64_t>(reference.output.size()));
      convolution_forward(g, reference.input.data(), reference.weight.data(), nullptr, output.data(), &plain_sgemm);
      REQUIRE(close(output, reference.output));
      convolution_forward(g, reference.input.data(), reference.weight.data(), reference.bias.data(), output.data(),
                          &plain_sgemm);
      REQUIRE(close(output, reference.with_bias(g)));
    }
  }
}

TEST_CASE("each gradient is right, alone and with others") {
  for (const Geometry& g : kGeometries) {
    const Reference reference(g);
    for (int mask = 0; mask < 16; ++mask) {
      INFO(text(g) << " mask " << mask);
      const Threads threads((mask & 8) != 0 ? 3 : 1);
      std::vector<float> input = unset((mask & 1) != 0 ? static_cast<int64_t>(reference.input.size()) : 0);
      std::vector<float> weight = unset((mask & 2) != 0 ? static_cast<int64_t>(reference.weight.size()) : 0);
      std::vector<float> bias = unset((mask & 4) != 0 ? static_cast<int64_t>(reference.bias.size()) : 0);
      const auto wanted = [](std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };
      convolution_backward(g, reference.grad_output.data(), reference.input.data(), reference.weight.data(),
                           {wanted(input), wanted(weight), wanted(bias)}, &plain_sgemm);
      REQUIRE((input.empty() || close(input, reference.grad_input)));
      REQUIRE((weight.empty() || close(weight, reference.grad_weight)));
      REQUIRE((bias.empty() || close(bias, reference.grad_bias)));
    }
  }
}

TEST_CASE("very large images do not fit") {
  REQUIRE(convolution_fits({.height = 300, .width = 400}));
  REQUIRE_FALSE(convolution_fits({.height = 300, .width = 500}));
  REQUIRE_FALSE(convolution_fits({.height = 300, .width = 400, .kernel_height = 3}));
}

}  // namespace
}  // namespace hetero::backend
