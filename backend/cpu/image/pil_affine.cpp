// As Geometry.c of Pillow, which has four ways:
//
//   kNearest, no rotation         columns and rows are looked up independently; places are added up
//   kNearest, places below 2^15   whole numbers with 16 bits after the point are added up
//   kNearest, other places        doubles are added up
//   kBilinear, kBicubic           each place is computed; pixels are doubles, and cut off
//
// The order of operations on doubles is Pillow's, and nothing is contracted.

#include "backend/cpu/image/pil_affine.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/image/row_kernels.h"

namespace hetero::backend {
namespace {

struct Band {
  Image<const uint8_t> from;
  Image<uint8_t> to;
  PilAffine a;
  std::span<const uint8_t> fill;
  int64_t begin, end;  // rows of `to`
};

// -1 for places outside. A place that no whole number has is outside, too.
int64_t place_to_index(double place, int64_t size) {
  return place >= 0.0 && place < static_cast<double>(size) ? static_cast<int64_t>(place) : -1;
}

template <int C>
void copy_pixel(const Band& band, int64_t y, int64_t x, uint8_t* out) {
  const int64_t channels = C == 0 ? band.from.channels : C;
  const bool inside = y >= 0 && x >= 0;
  std::memcpy(out, inside ? band.from.data + y * band.from.stride + x * channels : band.fill.data(),
              static_cast<size_t>(channels));
}

// ---- nearest

template <int C>
void transform_scaled(const Band& band) {
  const PilAffine& a = band.a;
  std::vector<int64_t> columns(static_cast<size_t>(band.to.width));
  double place_x = a[2] + a[0] * 0.5, place_y = a[5] + a[4] * 0.5;
  for (int64_t& column : columns) {
    column = place_to_index(place_x, band.from.width);
    place_x += a[0];
  }
  for (int64_t y = 0; y < band.end; ++y, place_y += a[4]) {
    if (y < band.begin) continue;
    const int64_t source = place_to_index(place_y, band.from.height);
    uint8_t* out = band.to.row(y);
    for (const int64_t x : columns) {
      copy_pixel<C>(band, source, x, out);
      out += band.to.channels;
    }
  }
}

bool fits_fixed(const PilAffine& a, int64_t x, int64_t y) {
  const auto at_x = static_cast<double>(x), at_y = static_cast<double>(y);
  return std::fabs(at_x * a[0] + at_y * a[1] + a[2]) < 32768.0 && std::fabs(at_x * a[3] + at_y * a[4] + a[5]) < 32768.0;
}

uint32_t to_fixed(double value) {
  return static_cast<uint32_t>(static_cast<int64_t>(std::floor(value * 65536.0 + 0.5)));
}

template <int C>
void transform_fixed(const Band& band) {
  const PilAffine& a = band.a;
  const uint32_t step_x = to_fixed(a[0]), step_y = to_fixed(a[3]), down_x = to_fixed(a[1]), down_y = to_fixed(a[4]);
  const uint32_t start_x = to_fixed(a[2] + a[0] * 0.5 + a[1] * 0.5);
  const uint32_t start_y = to_fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
  const int64_t width = band.from.width, height = band.from.height, channels = band.from.channels;
  for (int64_t y = band.begin; y < band.end; ++y) {
    uint32_t place_x = start_x + static_cast<uint32_t>(y) * down_x;
    uint32_t place_y = start_y + static_cast<uint32_t>(y) * down_y;
    uint8_t* out = band.to.row(y);
    for (int64_t x = 0; x < band.to.width; ++x, place_x += step_x, place_y += step_y, out += channels) {
      const int64_t from_x = static_cast<int32_t>(place_x) >> 16, from_y = static_cast<int32_t>(place_y) >> 16;
      copy_pixel<C>(band, from_y < height ? from_y : -1, from_x < width ? from_x : -1, out);
    }
  }
}

template <int C>
void transform_added(const Band& band) {
  const PilAffine& a = band.a;
  double start_x = a[2] + a[1] * 0.5 + a[0] * 0.5, start_y = a[5] + a[4] * 0.5 + a[3] * 0.5;
  for (int64_t y = 0; y < band.end; ++y, start_x += a[1], start_y += a[4]) {
    if (y < band.begin) continue;
    double place_x = start_x, place_y = start_y;
    uint8_t* out = band.to.row(y);
    for (int64_t x = 0; x < band.to.width; ++x, place_x += a[0], place_y += a[3], out += band.to.channels) {
      copy_pixel<C>(band, place_to_index(place_y, band.from.height), place_to_index(place_x, band.from.width), out);
    }
  }
}

template <int C>
void transform_nearest(const Band& band) {
  const int64_t width = band.to.width, height = band.to.height;
  const PilAffine& a = band.a;
  if (a[1] == 0 && a[3] == 0) return transform_scaled<C>(band);
  const bool fixed =
      fits_fixed(a, 0, 0) && fits_fixed(a, width, height) && fits_fixed(a, 0, height) && fits_fixed(a, width, 0);
  fixed ? transform_fixed<C>(band) : transform_added<C>(band);
}

void transform_nearest_any(const Band& band) {
  switch (band.from.channels) {
    case 1:
      return transform_nearest<1>(band);
    case 3:
      return transform_nearest<3>(band);
    case 4:
      return transform_nearest<4>(band);
    default:
      return transform_nearest<0>(band);
  }
}

// ---- bilinear and bicubic

double bilinear(double a, double b, double d) { return a + (b - a) * d; }

double bicubic(const double* v, double d) {
  const double p2 = -v[0] + v[2], p3 = 2 * (v[0] - v[1]) + v[2] - v[3], p4 = -v[0] + v[1] - v[2] + v[3];
  return v[1] + d * (p2 + d * (p3 + d * p4));
}

struct Pixel {
  int64_t x, y;   // of the first source pixel; it and others may be outside
  double dx, dy;  // from the pixel before the place
};

template <int kTaps>
void filter_pixel(const Image<const uint8_t>& from, const Pixel& at, uint8_t* out) {
  int64_t columns[kTaps];
  const uint8_t* rows[kTaps];
  for (int k = 0; k < kTaps; ++k) {
    columns[k] = std::clamp<int64_t>(at.x + k, 0, from.width - 1) * from.channels;
    rows[k] = from.row(std::clamp<int64_t>(at.y + k, 0, from.height - 1));
  }
  for (int64_t c = 0; c < from.channels; ++c) {
    double down[kTaps];
    for (int r = 0; r < kTaps; ++r) {
      double across[kTaps];
      for (int k = 0; k < kTaps; ++k) across[k] = rows[r][columns[k] + c];
      down[r] = kTaps == 2 ? bilinear(across[0], across[1], at.dx) : bicubic(across, at.dx);
    }
    const double value = kTaps == 2 ? bilinear(down[0], down[1], at.dy) : bicubic(down, at.dy);
    out[c] = value <= 0.0 ? 0 : value >= 255.0 ? 255 : static_cast<uint8_t>(value);
  }
}

template <int kTaps>
void transform_filtered(const Band& band) {
  const PilAffine& a = band.a;
  const Image<const uint8_t>& from = band.from;
  const int64_t count = band.to.width, channels = from.channels;
  const auto width = static_cast<double>(from.width), height = static_cast<double>(from.height);
  const PixelSource source{.data = from.data,
                           .bytes = from.end() - from.data,
                           .stride = from.stride,
                           .height = static_cast<int32_t>(from.height),
                           .width = static_cast<int32_t>(from.width),
                           .channels = channels};
  auto* const kernel = kTaps == 2 ? row_kernels().double_bilinear : row_kernels().double_bicubic;
  std::vector<double> places(static_cast<size_t>(2 * count));
  double* const place_x = places.data();
  double* const place_y = place_x + count;
  for (int64_t y = band.begin; y < band.end; ++y) {
    const double middle_y = static_cast<double>(y) + 0.5;
    for (int64_t x = 0; x < count; ++x) {
      const double middle_x = static_cast<double>(x) + 0.5;
      place_x[x] = a[0] * middle_x + a[1] * middle_y + a[2];
      place_y[x] = a[3] * middle_x + a[4] * middle_y + a[5];
    }
    uint8_t* const row = band.to.row(y);
    for (int64_t x = 0; x < count; ++x) {
      if (kernel != nullptr) {
        x += kernel(source, place_x + x, place_y + x, count - x, row + x * channels);
        if (x == count) break;
      }
      uint8_t* const out = row + x * channels;
      if (!(place_x[x] >= 0.0 && place_x[x] < width && place_y[x] >= 0.0 && place_y[x] < height)) {
        std::memcpy(out, band.fill.data(), static_cast<size_t>(channels));
        continue;
      }
      const double from_x = place_x[x] - 0.5, from_y = place_y[x] - 0.5;
      const double left = std::floor(from_x), top = std::floor(from_y);
      constexpr int64_t kBefore = kTaps / 2 - 1;
      filter_pixel<kTaps>(
          from,
          {static_cast<int64_t>(left) - kBefore, static_cast<int64_t>(top) - kBefore, from_x - left, from_y - top},
          out);
    }
  }
}

}  // namespace

void pil_affine(std::span<const Image<const uint8_t>> images, std::span<const PilAffine> coefficients,
                const ImageBatch<uint8_t>& results, PilTransformFilter filter, std::span<const uint8_t> fill) {
  if (results.height == 0 || results.width == 0) return;
  const int64_t work = filter == PilTransformFilter::kNearest ? 2 : filter == PilTransformFilter::kBilinear ? 8 : 24;
  for_row_bands(results.count, results.height, work * results.width * results.channels,
                [&](int64_t i, int64_t begin, int64_t end) {
                  const auto index = static_cast<size_t>(i);
                  const Band band{images[index], results.at(i), coefficients[index], fill, begin, end};
                  switch (filter) {
                    case PilTransformFilter::kNearest:
                      return transform_nearest_any(band);
                    case PilTransformFilter::kBilinear:
                      return transform_filtered<2>(band);
                    case PilTransformFilter::kBicubic:
                      return transform_filtered<4>(band);
                  }
                });
}

}  // namespace hetero::backend
