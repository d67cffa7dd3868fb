// 1. Invert the matrix as OpenCV does.
// 2. For each row of results: the places in the source, as whole numbers of 1/32 pixels or pixels.
// 3. Groups of pixels whose neighbours are all inside of the source take the fast loop; the others
//    look for each neighbour behind the border.
//
// The order of operations on doubles is OpenCV's, and nothing is contracted.

#include "backend/cpu/image/cv_warp.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/image/row_kernels.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

constexpr int kPlaceBits = 5;    // of a place between pixels
constexpr int kMatrixBits = 10;  // of an affine product
constexpr int32_t kPlaces = 1 << kPlaceBits;

// As the processor converts; beyond 32 bits it gives the smallest number.
int32_t round_even(double value) {
  if (!(value > -2147483648.5 && value < 2147483647.5)) return INT32_MIN;
  return static_cast<int32_t>(std::lrint(value));
}

int32_t wrapping_sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

int32_t to_short(int32_t value) { return std::clamp<int32_t>(value, INT16_MIN, INT16_MAX); }

AffineMatrix inverted(const AffineMatrix& m) {
  double scale = m[0] * m[4] - m[1] * m[3];
  scale = scale != 0 ? 1.0 / scale : 0;
  AffineMatrix made = m;
  made[0] = m[4] * scale;
  made[1] *= -scale;
  made[3] *= -scale;
  made[4] = m[0] * scale;
  made[2] = -made[0] * m[2] - made[1] * m[5];
  made[5] = -made[3] * m[2] - made[4] * m[5];
  return made;
}

PerspectiveMatrix inverted(const PerspectiveMatrix& m) {
  const double determinant =
      m[0] * (m[4] * m[8] - m[5] * m[7]) - m[1] * (m[3] * m[8] - m[5] * m[6]) + m[2] * (m[3] * m[7] - m[4] * m[6]);
  if (determinant == 0) return {};
  const double scale = 1.0 / determinant;
  return {
      (m[4] * m[8] - m[5] * m[7]) * scale, (m[2] * m[7] - m[1] * m[8]) * scale, (m[1] * m[5] - m[2] * m[4]) * scale,
      (m[5] * m[6] - m[3] * m[8]) * scale, (m[0] * m[8] - m[2] * m[6]) * scale, (m[2] * m[3] - m[0] * m[5]) * scale,
      (m[3] * m[7] - m[4] * m[6]) * scale, (m[1] * m[6] - m[0] * m[7]) * scale, (m[0] * m[4] - m[1] * m[3]) * scale};
}

// ---- places of a row of results

struct Places {
  int32_t* x;
  int32_t* y;
};

class AffinePlaces {
 public:
  AffinePlaces(const AffineMatrix& matrix, const Image<uint8_t>& to, bool linear)
      : m_(matrix), width_(to.width), shift_(linear ? kMatrixBits - kPlaceBits : kMatrixBits) {
    x_.resize(static_cast<size_t>(width_));
    y_.resize(static_cast<size_t>(width_));
    for (int64_t x = 0; x < width_; ++x) {
      x_[x] = round_even(m_[0] * static_cast<double>(x) * kScale);
      y_[x] = round_even(m_[3] * static_cast<double>(x) * kScale);
    }
  }
  void row(int64_t y, const Places& places) const {
    const int32_t half = 1 << (shift_ - 1);
    const auto at = static_cast<double>(y);
    const int32_t start_x = wrapping_sum(round_even((m_[1] * at + m_[2]) * kScale), half);
    const int32_t start_y = wrapping_sum(round_even((m_[4] * at + m_[5]) * kScale), half);
    for (int64_t x = 0; x < width_; ++x) {
      places.x[x] = wrapping_sum(start_x, x_[x]) >> shift_;
      places.y[x] = wrapping_sum(start_y, y_[x]) >> shift_;
    }
  }

 private:
  static constexpr double kScale = 1 << kMatrixBits;
  const AffineMatrix m_;
  const int64_t width_;
  const int shift_;
  std::vector<int32_t> x_, y_;
};

// OpenCV adds up from the first column of a block.
class PerspectivePlaces {
 public:
  PerspectivePlaces(const PerspectiveMatrix& matrix, const Image<uint8_t>& to, bool linear)
      : m_(matrix), width_(to.width), scale_(linear ? kPlaces : 1) {
    constexpr int64_t kBlock = 32;
    block_ = std::min(kBlock * kBlock / std::min(kBlock / 2, to.height), width_);
  }
  void row(int64_t row, const Places& places) const {
    constexpr double kLowest = INT32_MIN, kHighest = INT32_MAX;
    const auto at = static_cast<double>(row);
    for (int64_t first = 0; first < width_; first += block_) {
      const auto begin = static_cast<double>(first);
      const double start[3] = {m_[0] * begin + m_[1] * at + m_[2], m_[3] * begin + m_[4] * at + m_[5],
                               m_[6] * begin + m_[7] * at + m_[8]};
      const int64_t count = std::min(block_, width_ - first);
      int32_t* const place_x = places.x + first;
      int32_t* const place_y = places.y + first;
      auto* const kernel = row_kernels().perspective_places;
      int64_t i = kernel == nullptr ? 0 : kernel(m_.data(), start, scale_, count, place_x, place_y);
      for (; i < count; ++i) {
        const auto step = static_cast<double>(i);
        double w = start[2] + m_[6] * step;
        w = w != 0 ? scale_ / w : 0;
        const double x = std::max(kLowest, std::min(kHighest, (start[0] + m_[0] * step) * w));
        const double y = std::max(kLowest, std::min(kHighest, (start[1] + m_[3] * step) * w));
        place_x[i] = round_even(x);
        place_y[i] = round_even(y);
      }
    }
  }

 private:
  const PerspectiveMatrix m_;
  const int64_t width_;
  const double scale_;
  int64_t block_;
};

// ---- pixels

class Sampler {
 public:
  Sampler(const Image<const uint8_t>& from, const CvWarp& warp) : from_(from), warp_(warp) {}

  // The pixel at a place behind the border, or null for the border's value.
  const uint8_t* pixel(int64_t y, int64_t x) const {
    if (!is_inside(y, x)) {
      if (warp_.border == CvBorder::kConstant) return nullptr;
      y = border_index(y, from_.height, warp_.border);
      x = border_index(x, from_.width, warp_.border);
    }
    return from_.row(y) + x * from_.channels;
  }

  void nearest(int32_t x, int32_t y, uint8_t* out) const {
    const uint8_t* const source = pixel(to_short(y), to_short(x));
    for (int64_t c = 0; c < from_.channels; ++c) out[c] = value(source, c);
  }

  void linear(int32_t x, int32_t y, uint8_t* out) const {
    const int32_t left = to_short(x >> kPlaceBits), top = to_short(y >> kPlaceBits);
    if (warp_.border == CvBorder::kConstant && (left < -1 || top < -1 || left >= from_.width || top >= from_.height)) {
      for (int64_t c = 0; c < from_.channels; ++c) out[c] = warp_.value[static_cast<size_t>(c % 4)];
      return;
    }
    const int32_t right_weight = x & (kPlaces - 1), bottom_weight = y & (kPlaces - 1);
    const int32_t left_weight = kPlaces - right_weight, top_weight = kPlaces - bottom_weight;
    const uint8_t* const sources[4] = {pixel(top, left), pixel(top, left + 1), pixel(top + 1, left),
                                       pixel(top + 1, left + 1)};
    for (int64_t c = 0; c < from_.channels; ++c) {
      const int32_t upper = left_weight * value(sources[0], c) + right_weight * value(sources[1], c);
      const int32_t lower = left_weight * value(sources[2], c) + right_weight * value(sources[3], c);
      constexpr int kBits = 2 * kPlaceBits;
      out[c] = static_cast<uint8_t>((top_weight * upper + bottom_weight * lower + (1 << (kBits - 1))) >> kBits);
    }
  }

 private:
  bool is_inside(int64_t y, int64_t x) const {
    return static_cast<uint64_t>(y) < static_cast<uint64_t>(from_.height) &&
           static_cast<uint64_t>(x) < static_cast<uint64_t>(from_.width);
  }
  uint8_t value(const uint8_t* source, int64_t c) const {
    return source == nullptr ? warp_.value[static_cast<size_t>(c % 4)] : source[c];
  }

  const Image<const uint8_t>& from_;
  const CvWarp& warp_;
};

template <int C>
void copy_pixels(const Image<const uint8_t>& from, const Sampler& sampler, const Places& places, int64_t count,
                 uint8_t* out) {
  const auto width = static_cast<uint32_t>(from.width), height = static_cast<uint32_t>(from.height);
  const int64_t channels = C == 0 ? from.channels : C;
  for (int64_t i = 0; i < count; ++i, out += channels) {
    const int32_t x = places.x[i], y = places.y[i];
    if (static_cast<uint32_t>(x) < width && static_cast<uint32_t>(y) < height) {
      std::memcpy(out, from.data + y * from.stride + x * channels, static_cast<size_t>(channels));
    } else {
      sampler.nearest(x, y, out);
    }
  }
}

void nearest_row(const Image<const uint8_t>& from, const Sampler& sampler, const Places& places, int64_t count,
                 uint8_t* out) {
  switch (from.channels) {
    case 1:
      return copy_pixels<1>(from, sampler, places, count, out);
    case 3:
      return copy_pixels<3>(from, sampler, places, count, out);
    case 4:
      return copy_pixels<4>(from, sampler, places, count, out);
    default:
      return copy_pixels<0>(from, sampler, places, count, out);
  }
}

void linear_row(const Image<const uint8_t>& from, const Sampler& sampler, const Places& places, int64_t count,
                uint8_t* out) {
  auto* const kernel = row_kernels().bilinear_pixels;
  const PixelSource source{.data = from.data,
                           .bytes = from.end() - from.data,
                           .stride = from.stride,
                           .height = static_cast<int32_t>(from.height),
                           .width = static_cast<int32_t>(from.width),
                           .channels = from.channels};
  const int64_t channels = from.channels;
  for (int64_t i = 0; i < count;) {
    if (kernel != nullptr) i += kernel(source, places.x + i, places.y + i, count - i, out + i * channels);
    // Those that the kernel does not take: a group with a pixel at the border, or the rest.
    for (const int64_t end = std::min(i + kPixelGroup, count); i < end; ++i) {
      sampler.linear(places.x[i], places.y[i], out + i * channels);
    }
  }
}

template <typename PlacesOf, typename Matrix>
void warp_all(std::span<const Image<const uint8_t>> images, std::span<const Matrix> matrices,
              const ImageBatch<uint8_t>& results, const CvWarp& warp) {
  if (results.height == 0 || results.width == 0) return;
  for_row_bands(results.count, results.height, 4 * results.width * results.channels,
                [&](int64_t i, int64_t begin, int64_t end) {
                  static thread_local Scratch memory;
                  const Matrix& given = matrices[static_cast<size_t>(i)];
                  const Image<const uint8_t>& from = images[static_cast<size_t>(i)];
                  const Image<uint8_t> to = results.at(i);
                  const PlacesOf places_of(warp.inverse ? given : inverted(given), to, warp.linear);
                  const Sampler sampler(from, warp);
                  auto* const numbers = memory.get<int32_t>(2 * to.width);
                  const Places places{numbers, numbers + to.width};
                  for (int64_t y = begin; y < end; ++y) {
                    places_of.row(y, places);
                    (warp.linear ? linear_row : nearest_row)(from, sampler, places, to.width, to.row(y));
                  }
                });
}

}  // namespace

int64_t border_index(int64_t i, int64_t size, CvBorder border) {
  if (i >= 0 && i < size) return i;
  switch (border) {
    case CvBorder::kConstant:
      return -1;
    case CvBorder::kReplicate:
      return i < 0 ? 0 : size - 1;
    case CvBorder::kWrap:
      return (i % size + size) % size;
    case CvBorder::kReflect:
    case CvBorder::kReflect101:
      break;
  }
  if (size == 1) return 0;
  const int64_t skipped = border == CvBorder::kReflect101 ? 1 : 0, period = 2 * (size - skipped);
  const int64_t place = (i % period + period) % period;
  return place < size ? place : period - 1 - place + skipped;
}

void cv_warp_affine(std::span<const Image<const uint8_t>> images, std::span<const AffineMatrix> matrices,
                    const ImageBatch<uint8_t>& results, const CvWarp& warp) {
  warp_all<AffinePlaces>(images, matrices, results, warp);
}

void cv_warp_perspective(std::span<const Image<const uint8_t>> images, std::span<const PerspectiveMatrix> matrices,
                         const ImageBatch<uint8_t>& results, const CvWarp& warp) {
  warp_all<PerspectivePlaces>(images, matrices, results, warp);
}

}  // namespace hetero::backend
