// pil_enhance: Pillow's ImageEnhance.Brightness, Contrast and Color, each image by a factor of its
// own.
//
// An image is blended with one that has nothing of a property: black, the mean grey, or its own
// grey. Bytes are equal to those of Pillow 13.0.0 in modes L and RGB, for all finite factors.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/image/image.h"

namespace hetero::backend {

enum class PilProperty : uint8_t { kBrightness = 0, kContrast = 1, kColor = 2 };
inline constexpr int64_t kPilProperties = 3;

struct PilEnhancement {
  PilProperty property;
  float factor;  // 0: nothing of the property; 1: the image as it is
};

// REQUIRES: results.count images and enhancements; all images have the height, the width and the
// channels of the results, which are 1 or 3. Images are not results.
void pil_enhance(std::span<const Image<const uint8_t>> images, std::span<const PilEnhancement> enhancements,
                 const ImageBatch<uint8_t>& results);

}  // namespace hetero::backend
