// cv_resize: OpenCV's resize of images, to one size.
//
// Bytes are equal to those of opencv-python-headless 4.14.0.94 on x86-64 for all interpolations but
// kCubic, for any sizes. The wheel leaves kCubic to Intel's library, which rounds differently: at
// most 1 apart; with cv2.ipp.setUseIPP(False) it is equal, too. Floats differ from the wheel's by a
// relative 1e-4 of the largest value or less.
//
//   8 bits, kLinear    weights of 11 bits; each row's sums are rounded down to 16 bits
//   8 bits, kArea      sums of floats where the scale is no whole number; bilinear when enlarging
//   kLinear by 1/2     is kArea
//
// Thread safety: any thread; calls share nothing. Each thread keeps its memory from call to call.

#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/image/image.h"

namespace hetero::backend {

// The numbers are cv2's.
enum class CvInterpolation : uint8_t {
  kNearest = 0,
  kLinear = 1,
  kCubic = 2,
  kArea = 3,
  kLanczos4 = 4,
  kLinearExact = 5,
  kNearestExact = 6,
};
inline constexpr int kCvInterpolations = 7;

// Writes all of `results`. REQUIRES: results.count images; each has a pixel and the channels of the
// results; for floats no kLinearExact.
void cv_resize(std::span<const Image<const uint8_t>> images, const ImageBatch<uint8_t>& results,
               CvInterpolation interpolation);
void cv_resize(std::span<const Image<const float>> images, const ImageBatch<float>& results,
               CvInterpolation interpolation);

}  // namespace hetero::backend
