// cv_color: OpenCV's conversions of colours, byte by byte.
//
// Bytes are equal to those of opencv-python-headless 4.14.0.94 on x86-64, for all 2^24 colours.
// Conversions from HSV and to HLS are made of floats. OpenCV's vectors round them in another way
// than the pixels that are left at the end of a row, and have as many elements as the processor
// allows. So their bytes depend on the place in a row and on the processor, here as there.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <cstdint>

#include "backend/cpu/image/image.h"

namespace hetero::backend {

// The numbers are cv2's.
enum class CvColor : uint8_t {
  kBgrToGray = 6,
  kRgbToGray = 7,
  kBgrToYCrCb = 36,
  kRgbToYCrCb = 37,
  kYCrCbToBgr = 38,
  kYCrCbToRgb = 39,
  kBgrToHsv = 40,
  kRgbToHsv = 41,
  kBgrToLab = 44,
  kRgbToLab = 45,
  kBgrToHls = 52,
  kRgbToHls = 53,
  kHsvToBgr = 54,
  kHsvToRgb = 55,
  kBgrToHsvFull = 66,
  kRgbToHsvFull = 67,
};

bool is_color_code(int64_t code);
// The channels of results; images have 3.
int64_t color_channels(CvColor code);

// Writes all of `results`. REQUIRES: images of 3 channels; results of color_channels(code), and of
// the same count, height and width.
void cv_color(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, CvColor code);

}  // namespace hetero::backend
