// 1. A row is extended by the pixels behind the border, so that columns need no test.
// 2. Gaussian: the weighted columns of each row are kept, as many rows as the kernel has. A
//    result's row is their weighted sum. Box: sums of rows are updated from row to row, and their
//    columns added. Median: all rows of the square are kept.
// 3. The median is found for many pixels at once: its bits, from the highest, by counting the
//    pixels that are not smaller. Large squares have a histogram that moves along the row.

#include "backend/cpu/image/cv_filter.h"

#include <array>
#include <cmath>
#include <cstring>

#include "backend/base/rounding.h"
#include "backend/cpu/image/row_kernels.h"
#include "backend/cpu/vector/scratch.h"

namespace hetero::backend {
namespace {

// Elements that a loop works on while they are in the first-level cache.
constexpr int64_t kChunk = 512;

// Row y of an image with `left` and `right` pixels more. Beyond a constant border are zeros.
void extend_row(const Image<const uint8_t>& from, int64_t y, int64_t left, int64_t right, CvBorder border,
                uint8_t* out) {
  const int64_t channels = from.channels;
  const int64_t source = border_index(y, from.height, border);
  if (source < 0) {
    std::memset(out, 0, static_cast<size_t>((left + from.width + right) * channels));
    return;
  }
  const uint8_t* const row = from.row(source);
  std::memcpy(out + left * channels, row, static_cast<size_t>(from.row_elements()));
  const auto fill = [&](int64_t x) {
    const int64_t place = border_index(x, from.width, border);
    uint8_t* const pixel = out + (left + x) * channels;
    for (int64_t c = 0; c < channels; ++c) pixel[c] = place < 0 ? 0 : row[place * channels + c];
  };
  for (int64_t x = -left; x < 0; ++x) fill(x);
  for (int64_t x = from.width; x < from.width + right; ++x) fill(x);
}

// Rows y to y + `rows` - 1 of something that is made from rows of an image, which may lie behind
// the border. The last ones are kept. Vectors may write and read 32 elements beyond a row.
template <typename T>
class RowWindow {
 public:
  RowWindow(int64_t rows, int64_t elements) : rows_(rows), stride_(round_up(elements + 64, 32)), made_(INT64_MIN) {
    static thread_local Scratch memory;
    memory_ = memory.get<T>(rows * stride_);
    pointers_.resize(static_cast<size_t>(rows));
  }
  template <typename Make>
  const T* const* at(int64_t y, const Make& make) {
    for (int64_t i = std::max(y, made_); i < y + rows_; ++i) make(i, row(i));
    made_ = y + rows_;
    for (int64_t i = 0; i < rows_; ++i) pointers_[static_cast<size_t>(i)] = row(y + i);
    return pointers_.data();
  }

 private:
  T* row(int64_t y) const { return memory_ + ((y % rows_ + rows_) % rows_) * stride_; }
  const int64_t rows_, stride_;
  int64_t made_;
  T* memory_;
  std::vector<const T*> pointers_;
};

template <typename Body>
void for_bands(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, int64_t work,
               const Body& body) {
  if (images.height == 0 || images.width == 0) return;
  for_row_bands(images.count, images.height, work * images.width * images.channels,
                [&](int64_t i, int64_t begin, int64_t end) { body(images.at(i), results.at(i), begin, end); });
}

// ---- Gaussian

constexpr int kWeightBits = 8;

std::vector<double> exact_gaussian(int64_t size, double sigma) {
  if (sigma <= 0 && size <= 9) {
    constexpr double kSmall[5][5] = {{1},
                                     {0.5, 0.25},
                                     {0.375, 0.25, 0.0625},
                                     {0.28125, 0.21875, 0.109375, 0.03125},
                                     {60.0 / 256, 51.0 / 256, 30.0 / 256, 13.0 / 256, 4.0 / 256}};
    std::vector<double> weights(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) weights[i] = kSmall[size / 2][std::abs(i - size / 2)];
    return weights;
  }
  const double width = sigma > 0 ? sigma : std::fma(0.15, static_cast<double>(size), 0.35);
  const int64_t half = size / 2;
  std::vector<double> weights(static_cast<size_t>(size));
  double sum = 0, x = static_cast<double>(1 - size);
  for (int64_t i = 0; i < half; ++i, x += 2) {
    weights[i] = std::exp(x * x * -0.125 / (width * width));
    sum += weights[i];
  }
  const double scale = 1 / (2 * sum + 1);
  for (int64_t i = 0; i < half; ++i) weights[size - 1 - i] = weights[i] *= scale;
  weights[half] = scale;
  return weights;
}

void weigh_columns(const uint8_t* row, const std::vector<int32_t>& weights, int64_t channels, int64_t count,
                   uint16_t* out) {
  const auto taps = static_cast<int64_t>(weights.size());
  auto* const kernel = row_kernels().weigh_bytes;
  int64_t i = kernel == nullptr ? 0 : kernel(row, weights.data(), taps, channels, count, out);
  for (; i < count; i += kChunk) {
    const int64_t n = std::min(kChunk, count - i);
    std::memset(out + i, 0, static_cast<size_t>(n) * sizeof(*out));
    for (int64_t k = 0; k < taps; ++k) {
      const auto weight = static_cast<uint16_t>(weights[k]);
      const uint8_t* const tap = row + i + k * channels;
      for (int64_t j = 0; j < n; ++j) out[i + j] = static_cast<uint16_t>(out[i + j] + tap[j] * weight);
    }
  }
}

void weigh_rows(const uint16_t* const* rows, const std::vector<int32_t>& weights, int64_t count, uint8_t* out) {
  const auto taps = static_cast<int64_t>(weights.size());
  auto* const kernel = row_kernels().weigh_words;
  int64_t i = kernel == nullptr ? 0 : kernel(rows, weights.data(), taps, count, out);
  constexpr int kBits = 2 * kWeightBits;
  for (; i < count; i += kChunk) {
    std::array<uint32_t, kChunk> sums;
    const int64_t n = std::min(kChunk, count - i);
    std::fill_n(sums.begin(), n, 1u << (kBits - 1));
    for (int64_t k = 0; k < taps; ++k) {
      const auto weight = static_cast<uint32_t>(weights[k]);
      for (int64_t j = 0; j < n; ++j) sums[static_cast<size_t>(j)] += rows[k][i + j] * weight;
    }
    for (int64_t j = 0; j < n; ++j) out[i + j] = static_cast<uint8_t>(sums[static_cast<size_t>(j)] >> kBits);
  }
}

// ---- box

// The average of `area` bytes by their sum, as OpenCV divides.
std::vector<uint8_t> averages(int64_t area) {
  constexpr int kBits = 23;
  const double exact = static_cast<double>(1 << kBits) / static_cast<double>(area);
  auto scale = static_cast<int64_t>(std::floor(exact));
  const bool down = exact - static_cast<double>(scale) < 0.5;
  const int64_t half = area == 1 ? 0 : area / 2 + (down ? 1 : 0);
  if (!down) ++scale;
  std::vector<uint8_t> table(static_cast<size_t>(255 * area + 1));
  for (int64_t sum = 0; sum <= 255 * area; ++sum) {
    table[sum] = static_cast<uint8_t>(std::min<int64_t>(255, ((sum + half) * scale) >> kBits));
  }
  return table;
}

constexpr int64_t kWholeArea = 256;  // larger areas are averaged in floats

const std::vector<uint8_t>& cached_averages(int64_t area) {
  static thread_local std::vector<uint8_t> table;
  static thread_local int64_t last = 0;
  if (last != area) {
    last = 0;
    table = averages(area);
    last = area;
  }
  return table;
}

void average_in_floats(const uint32_t* sums, int64_t area, int64_t count, uint8_t* out) {
  const double exact = 1.0 / static_cast<double>(area);
  const auto scale = static_cast<float>(exact);
  const int64_t in_vectors = count / 8 * 8;
  constexpr float kWhole = 12582912.0f;  // its unit is 1
  for (int64_t i = 0; i < in_vectors; ++i) {
    const float value = static_cast<float>(static_cast<int32_t>(sums[i])) * scale;
    out[i] = static_cast<uint8_t>(static_cast<int32_t>((value + kWhole) - kWhole));
  }
  for (int64_t i = in_vectors; i < count; ++i) {
    out[i] = saturate_to_byte(static_cast<int32_t>(std::lrint(static_cast<double>(sums[i]) * exact)));
  }
}

template <typename Sum>
void add_columns(const Sum* sums, int64_t taps, int64_t channels, int64_t count, Sum* out) {
  constexpr int64_t kFewTaps = 24;
  if (taps > kFewTaps) {
    for (int64_t c = 0; c < channels; ++c) {
      Sum sum = 0;
      for (int64_t k = 0; k < taps - 1; ++k) sum = static_cast<Sum>(sum + sums[k * channels + c]);
      for (int64_t i = c; i < count; i += channels) {
        sum = static_cast<Sum>(sum + sums[i + (taps - 1) * channels]);
        out[i] = sum;
        sum = static_cast<Sum>(sum - sums[i]);
      }
    }
    return;
  }
  for (int64_t i = 0; i < count; i += kChunk) {
    const int64_t n = std::min(kChunk, count - i);
    std::copy_n(sums + i, n, out + i);
    for (int64_t k = 1; k < taps; ++k) {
      const Sum* const tap = sums + i + k * channels;
      for (int64_t j = 0; j < n; ++j) out[i + j] = static_cast<Sum>(out[i + j] + tap[j]);
    }
  }
}

// Sums fit into Sum.
template <typename Sum>
void box_band(const Image<const uint8_t>& from, const Image<uint8_t>& to, CvKernelSize size, CvBorder border,
              int64_t begin, int64_t end) {
  static thread_local Scratch memory;
  const int64_t left = size.width / 2, right = size.width - 1 - left, above = size.height / 2;
  const int64_t channels = from.channels, count = from.row_elements(), area = size.height * size.width;
  const int64_t extended = count + (left + right) * channels;
  Sum* const rows_sum = memory.get<Sum>(extended + count);
  Sum* const sums = rows_sum + extended;
  std::fill_n(rows_sum, extended, Sum{0});
  RowWindow<uint8_t> window(size.height, extended);
  bool is_first = true;
  for (int64_t y = begin; y < end; ++y) {
    // The row that a new one replaces is taken away first.
    window.at(y - above, [&](int64_t source, uint8_t* row) {
      if (!is_first) {
        for (int64_t i = 0; i < extended; ++i) rows_sum[i] = static_cast<Sum>(rows_sum[i] - row[i]);
      }
      extend_row(from, source, left, right, border, row);
      for (int64_t i = 0; i < extended; ++i) rows_sum[i] = static_cast<Sum>(rows_sum[i] + row[i]);
    });
    is_first = false;
    add_columns(rows_sum, size.width, channels, count, sums);
    uint8_t* const out = to.row(y);
    if constexpr (sizeof(Sum) == 2) {
      const uint8_t* const table = cached_averages(area).data();
      for (int64_t i = 0; i < count; ++i) out[i] = table[sums[i]];
      // OpenCV's average of two white pixels is 256. Its vectors of 16 saturate; the rest wraps.
      for (int64_t i = count / 16 * 16; area == 2 && i < count; ++i) out[i] = sums[i] == 510 ? 0 : out[i];
    } else {
      average_in_floats(sums, area, count, out);
    }
  }
}

// ---- median

// Counts have 8 bits.
constexpr int64_t kMostCounted = 15;

// The largest m so that more than half of the pixels are not smaller.
void median_by_bits(const uint8_t* const* rows, int64_t size, int64_t channels, int64_t count, uint8_t* out) {
  constexpr int64_t kPart = 64;
  auto* const kernel = row_kernels().median_bytes;
  int64_t i = kernel == nullptr ? 0 : kernel(rows, size, channels, count, out);
  const auto enough = static_cast<uint8_t>(size * size / 2 + 1);
  for (; i < count; i += kPart) {
    const int64_t n = std::min(kPart, count - i);
    std::array<uint8_t, kPart> found{}, counts;
    for (int bit = 128; bit != 0; bit >>= 1) {
      std::array<uint8_t, kPart> limit;
      for (size_t j = 0; j < kPart; ++j) limit[j] = static_cast<uint8_t>(found[j] | bit);
      counts.fill(0);
      for (int64_t r = 0; r < size; ++r) {
        for (int64_t k = 0; k < size; ++k) {
          const uint8_t* const pixels = rows[r] + i + k * channels;
          for (size_t j = 0; j < kPart; ++j) counts[j] = static_cast<uint8_t>(counts[j] + (pixels[j] >= limit[j]));
        }
      }
      for (size_t j = 0; j < kPart; ++j) found[j] = counts[j] >= enough ? limit[j] : found[j];
    }
    std::copy_n(found.begin(), n, out + i);
  }
}

struct Histogram {
  std::array<int32_t, 256> fine{};
  std::array<int32_t, 16> coarse{};

  void add(uint8_t value, int32_t by) {
    fine[value] += by;
    coarse[value >> 4] += by;
  }
  // The value that `before` others come before.
  uint8_t at(int32_t before) const {
    size_t group = 0, value = 0;
    while (before >= coarse[group]) before -= coarse[group++];
    for (value = 16 * group; before >= fine[value]; ++value) before -= fine[value];
    return static_cast<uint8_t>(value);
  }
};

void median_by_histogram(const uint8_t* const* rows, int64_t size, int64_t channels, int64_t width, uint8_t* out) {
  const auto middle = static_cast<int32_t>(size * size / 2);
  for (int64_t c = 0; c < channels; ++c) {
    Histogram histogram;
    const auto add_column = [&](int64_t x, int32_t by) {
      for (int64_t r = 0; r < size; ++r) histogram.add(rows[r][x * channels + c], by);
    };
    for (int64_t x = 0; x < size - 1; ++x) add_column(x, 1);
    for (int64_t x = 0; x < width; ++x) {
      add_column(x + size - 1, 1);
      out[x * channels + c] = histogram.at(middle);
      add_column(x, -1);
    }
  }
}

}  // namespace

std::vector<int32_t> gaussian_weights(int64_t size, double sigma) {
  const std::vector<double> exact = exact_gaussian(size, sigma);
  std::vector<int32_t> weights(exact.size());
  // What rounding takes from a weight goes to the next; the middle gets the rest.
  double error = 0;
  int32_t sum = 0;
  for (int64_t i = 0; i < size / 2; ++i) {
    const double wanted = exact[i] * (1 << kWeightBits) + error;
    const auto weight = static_cast<int32_t>(std::lrint(wanted));
    error = wanted - weight;
    weights[i] = weights[size - 1 - i] = weight;
    sum += 2 * weight;
  }
  weights[size / 2] = (1 << kWeightBits) - sum;
  return weights;
}

int64_t gaussian_size(double sigma) { return std::lrint(sigma * 3 * 2 + 1) | 1; }

void cv_gaussian_blur(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, CvKernelSize size,
                      double sigma_x, double sigma_y, CvBorder border) {
  const std::vector<int32_t> across = gaussian_weights(size.width, sigma_x);
  const std::vector<int32_t> down = gaussian_weights(size.height, sigma_y > 0 ? sigma_y : sigma_x);
  const auto body = [&](const Image<const uint8_t>& from, const Image<uint8_t>& to, int64_t begin, int64_t end) {
    static thread_local Scratch memory;
    const int64_t radius = size.width / 2, count = from.row_elements();
    uint8_t* const extended = memory.get<uint8_t>(count + 2 * radius * from.channels + 64);
    RowWindow<uint16_t> window(size.height, count);
    for (int64_t y = begin; y < end; ++y) {
      const uint16_t* const* const rows = window.at(y - size.height / 2, [&](int64_t source, uint16_t* out) {
        extend_row(from, source, radius, radius, border, extended);
        weigh_columns(extended, across, from.channels, count, out);
      });
      weigh_rows(rows, down, count, to.row(y));
    }
  };
  for_bands(images, results, (size.width + size.height) / 4 + 1, body);
}

void cv_box_blur(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, CvKernelSize size,
                 CvBorder border) {
  for_bands(images, results, 4,
            [&](const Image<const uint8_t>& from, const Image<uint8_t>& to, int64_t begin, int64_t end) {
              const bool whole = size.height * size.width <= kWholeArea;
              (whole ? box_band<uint16_t> : box_band<uint32_t>)(from, to, size, border, begin, end);
            });
}

void cv_median_blur(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, int64_t size) {
  const auto body = [&](const Image<const uint8_t>& from, const Image<uint8_t>& to, int64_t begin, int64_t end) {
    const int64_t radius = size / 2, channels = from.channels, count = from.row_elements();
    RowWindow<uint8_t> window(size, count + 2 * radius * channels);
    for (int64_t y = begin; y < end; ++y) {
      const uint8_t* const* const rows = window.at(y - radius, [&](int64_t source, uint8_t* out) {
        extend_row(from, source, radius, radius, CvBorder::kReplicate, out);
        std::memset(out + count + 2 * radius * channels, 0, 64);
      });
      if (size <= kMostCounted) {
        median_by_bits(rows, size, channels, count, to.row(y));
      } else {
        median_by_histogram(rows, size, channels, from.width, to.row(y));
      }
    }
  };
  for_bands(images, results, size <= kMostCounted ? size * size : 8 * size, body);
}

}  // namespace hetero::backend
