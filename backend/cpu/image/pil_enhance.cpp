// Pillow's Blend.c adds factor * (image - other) to other in floats, and drops fractions. The
// factor 1 or 0 needs no case of its own: the sum is exact then.

#include "backend/cpu/image/pil_enhance.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "backend/cpu/image/row_kernels.h"

namespace hetero::backend {
namespace {

constexpr int64_t kColors = 3;

uint8_t blended(uint8_t other, uint8_t byte, float factor) {
  const float value = static_cast<float>(other) + factor * static_cast<float>(byte - other);
  return static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

uint8_t grey_of(const uint8_t* pixel) {
  return static_cast<uint8_t>((pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16);
}

// Grey bytes of a row; those of an image without colours are its own.
const uint8_t* grey_row(const Image<const uint8_t>& image, int64_t y, std::vector<uint8_t>& greys) {
  const uint8_t* const row = image.row(y);
  if (image.channels != kColors) return row;
  auto* const kernel = row_kernels().grey_pixels;
  int64_t x = kernel == nullptr ? 0 : kernel(row, image.width, greys.data());
  for (; x < image.width; ++x) greys[x] = grey_of(row + kColors * x);
  return greys.data();
}

void blend_with_constant(uint8_t other, const uint8_t* row, float factor, int64_t count, uint8_t* out) {
  auto* const kernel = row_kernels().blend_constant;
  int64_t i = kernel == nullptr ? 0 : kernel(other, row, factor, count, out);
  for (; i < count; ++i) out[i] = blended(other, row[i], factor);
}

void blend_with_grey(const uint8_t* greys, const uint8_t* row, float factor, int64_t width, uint8_t* out) {
  auto* const kernel = row_kernels().blend_grey;
  int64_t x = kernel == nullptr ? 0 : kernel(greys, row, factor, width, out);
  for (; x < width; ++x) {
    for (int64_t c = 0; c < kColors; ++c) {
      out[kColors * x + c] = blended(greys[x], row[kColors * x + c], factor);
    }
  }
}

}  // namespace

void pil_enhance(std::span<const Image<const uint8_t>> images, std::span<const PilEnhancement> enhancements,
                 const ImageBatch<uint8_t>& results) {
  const int64_t row_bytes = results.width * results.channels;
  // Sums of grey bytes, of images whose contrast changes.
  std::vector<std::atomic<int64_t>> sums(images.size());
  const bool needs_sums = std::ranges::any_of(
      enhancements, [](const PilEnhancement& enhancement) { return enhancement.property == PilProperty::kContrast; });
  if (needs_sums) {
    for_row_bands(results.count, results.height, row_bytes, [&](int64_t i, int64_t begin, int64_t end) {
      if (enhancements[i].property != PilProperty::kContrast) return;
      std::vector<uint8_t> greys(results.width);
      int64_t sum = 0;
      for (int64_t y = begin; y < end; ++y) {
        const uint8_t* const row = grey_row(images[i], y, greys);
        uint32_t row_sum = 0;  // a row has fewer than 2^24 pixels
        for (int64_t x = 0; x < results.width; ++x) row_sum += row[x];
        sum += row_sum;
      }
      sums[i].fetch_add(sum, std::memory_order_relaxed);
    });
  }
  const auto pixels = static_cast<double>(results.height * results.width);
  for_row_bands(results.count, results.height, 2 * row_bytes, [&](int64_t i, int64_t begin, int64_t end) {
    const auto [property, factor] = enhancements[i];
    const Image<uint8_t> out = results.at(i);
    std::vector<uint8_t> greys(property == PilProperty::kColor ? results.width : 0);
    const double mean = static_cast<double>(sums[i].load(std::memory_order_relaxed)) / pixels;
    const auto other = property == PilProperty::kContrast ? static_cast<uint8_t>(mean + 0.5) : uint8_t{0};
    for (int64_t y = begin; y < end; ++y) {
      const uint8_t* const row = images[i].row(y);
      if (property != PilProperty::kColor) {
        blend_with_constant(other, row, factor, row_bytes, out.row(y));
      } else if (results.channels == kColors) {
        blend_with_grey(grey_row(images[i], y, greys), row, factor, results.width, out.row(y));
      } else {
        std::memcpy(out.row(y), row, row_bytes);
      }
    }
  });
}

}  // namespace hetero::backend
