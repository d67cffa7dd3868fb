// The gradient of a depthwise convolution's input, at pixel y of a column, is a sum over the taps k
// with y = stride * output - padding + dilation * k. Every stride pixels they are the same taps,
// and the outputs that they meet are neighbours: a convolution with stride 1. So there are stride
// of such *phases* along each dimension, and depthwise_kernel.h computes them, from the last output
// that a pixel meets to the first.

#include "backend/cpu/convolution/pixel_gradients.h"

#include <algorithm>
#include <numeric>

#include "backend/base/parallel.h"
#include "backend/cpu/convolution/depthwise.h"
#include "backend/cpu/convolution/depthwise_kernel.h"
#include "backend/cpu/convolution/pixel_mean.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// With fewer, threads share the channels, so that each reads its part of the weight only.
constexpr int64_t kManyPixels = 512;
// The products that are worth another thread.
constexpr int64_t kProductsPerThread = 128 << 10;

// How many threads have enough of so many products.
int64_t useful_threads(int64_t products) {
  return std::clamp<int64_t>(products / kProductsPerThread, 1, thread_count());
}

// The part of [0, count) that is the i-th of so many.
struct Part {
  int64_t begin, end;
  Part(int64_t count, int64_t parts, int64_t i) : begin(count * i / parts), end(count * (i + 1) / parts) {}
  int64_t size() const { return end - begin; }
};

void for_each_part(int64_t parts, FunctionRef<void(int64_t part)> run) {
  parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run(i);
  });
}

// sums[i] += the sum of the parts' entries, which follow each other.
void add_parts(const float* parts, int64_t count, int64_t entries, float* sums) {
  parallel_for(0, entries, kProductsPerThread / (4 * count), [&](int64_t begin, int64_t end) {
    for (int64_t part = 0; part < count; ++part) {
      const float* const from = parts + part * entries;
      for (int64_t i = begin; i < end; ++i) sums[i] += from[i];
    }
  });
}

void bias_gradient(const PixelGradients& call) {
  const ConvolutionGeometry& g = call.geometry;
  if (call.gradients.bias == nullptr) return;
  const int64_t outputs = g.images * g.positions();
  pixel_means(Element::kFloat32, call.grad_output, 1, outputs, g.outputs, call.gradients.bias);
  for (int64_t i = 0; i < g.outputs; ++i) call.gradients.bias[i] *= static_cast<float>(outputs);
}

// ---- depthwise ----------------------------------------------------------------------------------

// Of the pixels along one dimension that are `first`, and every stride from there on: the taps that
// meet outputs there, and the outputs that pixel `first + i * stride` meets, output + i, and every
// output_step before.
struct Phase {
  int64_t taps, tap = 0, tap_step = 1, output = 0, output_step = 1;

  Phase(int64_t first, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    const int64_t common = std::gcd(stride, dilation);
    tap_step = stride / common;
    output_step = dilation / common;
    const auto meets = [&](int64_t k) { return (first + padding - k * dilation) % stride == 0; };
    while (tap < std::min(kernel, tap_step) && !meets(tap)) ++tap;
    taps = tap < std::min(kernel, tap_step) ? (kernel - tap - 1) / tap_step + 1 : 0;
    output = (first + padding - tap * dilation) / stride;
  }
  // Of these taps, those that meet one of so many outputs, at the i-th pixel.
  Taps meeting(int64_t i, int64_t outputs) const { return {outputs - 1 - (output + i), taps, output_step, outputs}; }
};

// Row y of an image's gradient.
void input_row(const PixelGradients& call, const DepthwiseKernels& kernels, const float* taps, int64_t image,
               int64_t y) {
  const ConvolutionGeometry& g = call.geometry;
  const int64_t out_width = g.out_width(), channels = g.channels;
  const int64_t phase_y = y % g.stride_y;
  const Phase down(phase_y, g.kernel_height, g.stride_y, g.padding_y, g.dilation_y);
  const Taps rows = down.taps == 0 ? Taps(0, 0, 1, 1) : down.meeting(y / g.stride_y, g.out_height());
  const int64_t last_row = down.output + y / g.stride_y - rows.first * down.output_step;
  float* const to = call.gradients.input + (image * g.pixels() + y * g.width) * channels;
  const float* const plane = call.grad_output + image * g.positions() * channels;
  for (int64_t first = 0; first < std::min(g.stride_x, g.width); ++first) {
    const Phase across(first, g.kernel_width, g.stride_x, g.padding_x, g.dilation_x);
    const int64_t count = (g.width - 1 - first) / g.stride_x + 1;
    DepthwiseBlock block{.input = nullptr,
                         .input_row = -down.output_step * out_width * channels,
                         .input_tap = -across.output_step * channels,
                         .step = channels,
                         .taps = nullptr,
                         .taps_row = down.tap_step * g.kernel_width * channels,
                         .taps_step = across.tap_step * channels,
                         .rows = static_cast<int>(rows.last - rows.first),
                         .columns = 0,
                         .bias = nullptr,
                         .output = nullptr,
                         .output_step = g.stride_x * channels,
                         .channels = channels,
                         .limits = nullptr};
    // Pixels [inner, outer) meet outputs with all taps.
    const int64_t inner = std::clamp<int64_t>((across.taps - 1) * across.output_step - across.output, 0, count);
    const int64_t outer = std::clamp<int64_t>(out_width - across.output, inner, count);
    for (int64_t i = 0; i < count;) {
      const bool whole = i >= inner && i < outer;
      const int64_t together = whole ? std::min<int64_t>(outer - i, kDepthwiseBlock) : 1;
      const Taps columns = across.taps == 0 ? Taps(0, 0, 1, 1) : across.meeting(i, out_width);
      block.columns = static_cast<int>(columns.last - columns.first);
      const bool meets = block.rows > 0 && block.columns > 0;
      const int64_t last_column = across.output + i - columns.first * across.output_step;
      block.input = plane + (meets ? last_row * out_width + last_column : 0) * channels;
      const int64_t tap_y = down.tap + rows.first * down.tap_step;
      const int64_t tap_x = across.tap + columns.first * across.tap_step;
      block.taps = taps + (meets ? tap_y * g.kernel_width + tap_x : 0) * channels;
      block.output = to + (first + i * g.stride_x) * channels;
      kernels.block[static_cast<size_t>(Element::kFloat32)][static_cast<size_t>(together - 1)](block);
      i += together;
    }
  }
}

// Adds the part of a row of outputs to the gradients of the taps, [kernel, channels].
void add_tap_sums(const PixelGradients& call, const DepthwiseKernels& kernels, int64_t row, float* sums) {
  const ConvolutionGeometry& g = call.geometry;
  const int64_t image = row / g.out_height(), y = row % g.out_height();
  const int64_t out_width = g.out_width(), channels = g.channels;
  const int64_t top = y * g.stride_y - g.padding_y;
  const Taps rows(top, g.kernel_height, g.dilation_y, g.height);
  const auto [inner, outer] = whole_outputs(g);
  for (int64_t tap = rows.first; tap < rows.last; ++tap) {
    const float* const line = call.input + (image * g.pixels() + (top + tap * g.dilation_y) * g.width) * channels;
    for (int64_t x = 0; x < out_width;) {
      const bool whole = x >= inner && x < outer;
      const int64_t left = x * g.stride_x - g.padding_x;
      const Taps columns(left, g.kernel_width, g.dilation_x, g.width);
      const int64_t outputs = whole ? outer - x : 1;
      kernels.sums({.gradients = call.grad_output + (row * out_width + x) * channels,
                    .input = line + (left + columns.first * g.dilation_x) * channels,
                    .input_tap = g.dilation_x * channels,
                    .step = g.stride_x * channels,
                    .outputs = outputs,
                    .taps = static_cast<int>(columns.last - columns.first),
                    .channels = channels,
                    .sums = sums + (tap * g.kernel_width + columns.first) * channels});
      x += outputs;
    }
  }
}

}  // namespace

void pointwise_gradients(const PixelGradients& call, Sgemm sgemm) {
  static thread_local Scratch memory;
  const ConvolutionGeometry& g = call.geometry;
  const int64_t pixels = g.images * g.pixels(), channels = g.channels, outputs = g.outputs;
  const ConvolutionGradients& gradients = call.gradients;
  const int64_t parts = useful_threads(pixels * channels * outputs);
  const bool by_pixels = pixels >= kManyPixels;
  const int64_t entries = outputs * channels;
  // Of all parts but the first.
  float* const others = by_pixels && gradients.weight != nullptr ? memory.get<float>((parts - 1) * entries) : nullptr;
  for_each_part(parts, [&](int64_t part) {
    if (gradients.input != nullptr) {
      const Part rows = by_pixels ? Part(pixels, parts, part) : Part(pixels, 1, 0);
      const Part columns = by_pixels ? Part(channels, 1, 0) : Part(channels, parts, part);
      sgemm({.m = rows.size(),
             .n = columns.size(),
             .k = outputs,
             .a = call.grad_output + rows.begin * outputs,
             .lda = outputs,
             .b = call.weight + columns.begin,
             .ldb = channels,
             .c = gradients.input + rows.begin * channels + columns.begin,
             .ldc = channels});
    }
    if (gradients.weight != nullptr) {
      const Part rows = by_pixels ? Part(outputs, 1, 0) : Part(outputs, parts, part);
      const Part summed = by_pixels ? Part(pixels, parts, part) : Part(pixels, 1, 0);
      float* const whole = by_pixels && part > 0 ? others + (part - 1) * entries : gradients.weight;
      sgemm({.a_transposed = true,
             .m = rows.size(),
             .n = channels,
             .k = summed.size(),
             .a = call.grad_output + summed.begin * outputs + rows.begin,
             .lda = outputs,
             .b = call.input + summed.begin * channels,
             .ldb = channels,
             .c = whole + rows.begin * channels,
             .ldc = channels});
    }
  });
  if (others != nullptr && parts > 1) add_parts(others, parts - 1, entries, gradients.weight);
  bias_gradient(call);
}

void depthwise_gradients(const PixelGradients& call, InstructionSet set) {
  static thread_local Scratch taps_memory, sums_memory;
  const ConvolutionGeometry& g = call.geometry;
  const DepthwiseKernels& kernels = depthwise_kernels(set);
  const int64_t entries = g.kernel() * g.channels;
  const int64_t out_rows = g.images * g.out_height(), rows = g.images * g.height;
  const int64_t parts = std::min(useful_threads(out_rows * g.out_width() * entries), out_rows);
  const ConvolutionGradients& gradients = call.gradients;
  float* const taps = taps_memory.get<float>(entries);
  float* const sums = sums_memory.get<float>(parts * entries);
  if (gradients.input != nullptr) depthwise_taps(g, Element::kFloat32, call.weight, taps);
  for_each_part(parts, [&](int64_t part) {
    if (gradients.input != nullptr) {
      const Part own(rows, parts, part);
      for (int64_t row = own.begin; row < own.end; ++row) {
        input_row(call, kernels, taps, row / g.height, row % g.height);
      }
    }
    if (gradients.weight != nullptr) {
      const Part own(out_rows, parts, part);
      float* const of_part = sums + part * entries;
      std::fill_n(of_part, entries, 0.0f);
      for (int64_t row = own.begin; row < own.end; ++row) add_tap_sums(call, kernels, row, of_part);
    }
  });
  if (gradients.weight != nullptr) {
    if (parts > 1) add_parts(sums + entries, parts - 1, entries, sums);
    constexpr int64_t kTogether = 16;
    const int64_t kernel = g.kernel();
    for (int64_t first = 0; first < g.channels; first += kTogether) {
      const int64_t last = std::min(first + kTogether, g.channels);
      for (int64_t tap = 0; tap < kernel; ++tap) {
        for (int64_t c = first; c < last; ++c) gradients.weight[c * kernel + tap] = sums[tap * g.channels + c];
      }
    }
  }
  bias_gradient(call);
}

}  // namespace hetero::backend
