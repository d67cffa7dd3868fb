#include "backend/cpu/convolution/unfold.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace hetero::backend {
namespace {

// Runs are mostly short: a call of memcpy would take longer than the copy.
constexpr int64_t kShort = 64;
constexpr int64_t kVector = 4;

inline void copy(const float* from, int64_t count, float* to) {
  if (count >= kShort) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) std::memcpy(to + i, from + i, kVector * sizeof(float));
  for (; i < count; ++i) to[i] = from[i];
}

inline void clear(float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = 0;
}

inline void add(const float* __restrict from, int64_t count, float* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

int64_t divide_up(int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

// The output positions [begin, end) along one dimension at which the kernel's point meets a pixel,
// and the pixel that the first meets.
struct Range {
  int64_t begin, end, first;
};
Range met(int64_t size, int64_t positions, int64_t stride, int64_t padding, int64_t point) {
  const int64_t shift = point - padding;
  const int64_t end = std::clamp<int64_t>(divide_up(size - shift, stride), 0, positions);
  const int64_t begin = std::min(divide_up(-shift, stride), end);
  return {begin, end, begin * stride + shift};
}

// Calls run(row, y, x) for each point of the kernel: its row, and the pixels that it meets.
template <typename Run>
void for_each_point(const ConvolutionGeometry& geometry, Run&& run) {
  const int64_t out_height = geometry.out_height(), out_width = geometry.out_width();
  int64_t row = 0;
  for (int64_t ky = 0; ky < geometry.kernel_height; ++ky) {
    const Range y = met(geometry.height, out_height, geometry.stride_y, geometry.padding_y, ky * geometry.dilation_y);
    for (int64_t kx = 0; kx < geometry.kernel_width; ++kx, ++row) {
      run(row, y, met(geometry.width, out_width, geometry.stride_x, geometry.padding_x, kx * geometry.dilation_x));
    }
  }
}

// Whether lines of the output and of the image have the same length and step, so that a row is the
// plane, shifted, but for the lines' ends.
bool shifted(const ConvolutionGeometry& geometry) {
  return geometry.stride_x == 1 && geometry.stride_y == 1 && geometry.out_width() == geometry.width;
}

// The ends of lines y.begin to y.end, but for the beginning of the first and the end of the last,
// become 0.
void clear_ends(const Range& y, const Range& x, int64_t width, int64_t lanes, float* row) {
  const int64_t gap = (width - (x.end - x.begin)) * lanes;
  if (gap == 0) return;
  for (int64_t i = y.begin; i + 1 < y.end; ++i) clear(row + (i * width + x.end) * lanes, gap);
}

// Floats that lie `step` apart, side by side.
inline void copy_steps(const float* __restrict from, int64_t step, int64_t count, float* __restrict to) {
  if (step == 2) {
    for (int64_t j = 0; j < count; ++j) to[j] = from[2 * j];
  } else {
    for (int64_t j = 0; j < count; ++j) to[j] = from[step * j];
  }
}

// Calls body(lane, number of lanes), four lanes at a time and then what is left.
template <typename Body>
void by_lanes(int64_t lanes, Body&& body) {
  int64_t lane = 0;
  for (; lane + 4 <= lanes; lane += 4) body(lane, std::integral_constant<int64_t, 4>());
  if (lanes - lane == 3) body(lane, std::integral_constant<int64_t, 3>());
  if (lanes - lane == 2) body(lane, std::integral_constant<int64_t, 2>());
  if (lanes - lane == 1) body(lane, std::integral_constant<int64_t, 1>());
}

}  // namespace

void unfold(const ConvolutionGeometry& geometry, const float* plane, int64_t lanes, float* rows, int64_t row_stride) {
  const int64_t out_height = geometry.out_height(), out_width = geometry.out_width(), width = geometry.width;
  const int64_t step = geometry.stride_x;
  for_each_point(geometry, [&](int64_t row, const Range& y, const Range& x) {
    float* const to = rows + row * row_stride;
    const int64_t count = x.end - x.begin;
    if (y.begin == y.end || count == 0) return clear(to, out_height * out_width * lanes);
    const float* const from = plane + (y.first * width + x.first) * lanes;
    const int64_t begin = (y.begin * out_width + x.begin) * lanes, end = ((y.end - 1) * out_width + x.end) * lanes;
    clear(to, begin);
    if (shifted(geometry)) {
      copy(from, end - begin, to + begin);
      clear_ends(y, x, width, lanes, to);
    } else {
      for (int64_t i = y.begin; i < y.end; ++i) {
        float* const run = to + (i * out_width + x.begin) * lanes;
        const float* const line = from + (i - y.begin) * geometry.stride_y * width * lanes;
        if (step == 1) {
          copy(line, count * lanes, run);
        } else if (lanes == 1) {
          copy_steps(line, step, count, run);
        } else {
          for (int64_t j = 0; j < count; ++j) copy(line + j * step * lanes, lanes, run + j * lanes);
        }
      }
      clear_ends(y, x, out_width, lanes, to);
    }
    clear(to + end, out_height * out_width * lanes - end);
  });
}

void fold(const ConvolutionGeometry& geometry, float* rows, int64_t row_stride, int64_t lanes, float* plane) {
  const int64_t out_width = geometry.out_width(), width = geometry.width, step = geometry.stride_x;
  clear(plane, geometry.pixels() * lanes);
  for_each_point(geometry, [&](int64_t row, const Range& y, const Range& x) {
    float* const from = rows + row * row_stride;
    const int64_t count = x.end - x.begin;
    if (y.begin == y.end || count == 0) return;
    float* const to = plane + (y.first * width + x.first) * lanes;
    const int64_t begin = (y.begin * out_width + x.begin) * lanes, end = ((y.end - 1) * out_width + x.end) * lanes;
    if (shifted(geometry)) {
      clear_ends(y, x, width, lanes, from);
      return add(from + begin, end - begin, to);
    }
    for (int64_t i = y.begin; i < y.end; ++i) {
      const float* const run = from + (i * out_width + x.begin) * lanes;
      float* const line = to + (i - y.begin) * geometry.stride_y * width * lanes;
      if (step == 1) {
        add(run, count * lanes, line);
      } else if (lanes == 1) {
        for (int64_t j = 0; j < count; ++j) line[j * step] += run[j];
      } else {
        for (int64_t j = 0; j < count; ++j) add(run + j * lanes, lanes, line + j * step * lanes);
      }
    }
  });
}

// Some lanes at a time, so that every access is a vector, or a part of one that the next accesses
// use up.
void interleave(const float* planar, int64_t stride, int64_t lanes, int64_t count, float* interleaved) {
  by_lanes(lanes, [&](int64_t lane, auto some) {
    const float* const from = planar + lane * stride;
    float* __restrict to = interleaved + lane;
    for (int64_t i = 0; i < count; ++i, to += lanes) {
      for (int64_t k = 0; k < some; ++k) to[k] = from[k * stride + i];
    }
  });
}

void deinterleave(const float* interleaved, int64_t lanes, int64_t count, float* planar, int64_t stride) {
  by_lanes(lanes, [&](int64_t lane, auto some) {
    const float* __restrict from = interleaved + lane;
    float* const to = planar + lane * stride;
    for (int64_t i = 0; i < count; ++i, from += lanes) {
      for (int64_t k = 0; k < some; ++k) to[k * stride + i] = from[k];
    }
  });
}

}  // namespace hetero::backend
