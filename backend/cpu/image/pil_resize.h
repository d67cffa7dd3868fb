// pil_resize: Pillow's Image.resize, with a box for each image, to one size.
//
// Bytes are equal to those of Pillow 13.0.0. Pillow filters columns, rounds to bytes, and filters
// rows, or the other way round where many rows and few columns are taken away. Weights are whole
// numbers of 22 bits. When making smaller, filters are as wide as a result's pixel, which is what
// "antialias" means elsewhere.
//
// Channels are independent: who resizes RGBA as Pillow does multiplies by alpha before (mode RGBa)
// and divides afterwards.
//
// Thread safety: any thread; calls share nothing. Each thread keeps its memory from call to call.

#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/image/image.h"

namespace hetero::backend {

// The numbers are Pillow's.
enum class PilFilter : uint8_t { kNearest = 0, kLanczos = 1, kBilinear = 2, kBicubic = 3, kBox = 4, kHamming = 5 };
inline constexpr int kPilFilters = 6;

// The part of an image that becomes the result. Pillow takes floats.
struct PilBox {
  float left = 0, upper = 0, right = 0, lower = 0;

  // Within the image, with right >= left and lower >= upper, which Pillow demands.
  bool fits(int64_t height, int64_t width) const {
    return left >= 0 && upper >= 0 && right <= static_cast<float>(width) && lower <= static_cast<float>(height) &&
           right >= left && lower >= upper;
  }
};

// Writes all of `results`. REQUIRES: results.count images and boxes; each image has the channels of
// the results, its box fits.
void pil_resize(std::span<const Image<const uint8_t>> images, std::span<const PilBox> boxes,
                const ImageBatch<uint8_t>& results, PilFilter filter);

}  // namespace hetero::backend
