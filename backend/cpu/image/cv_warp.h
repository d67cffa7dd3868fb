// cv_warp_affine, cv_warp_perspective: OpenCV's warps of images, to one size.
//
// Bytes are equal to those of opencv-python-headless 4.14.0.94 on x86-64. A result's pixel is
// looked up at a place in the source that is rounded to 1/32 of a pixel (kLinear) or to a pixel.
//
// Thread safety: any thread; calls share nothing. Each thread keeps its memory from call to call.

#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backend/cpu/image/image.h"

namespace hetero::backend {

// The numbers are cv2's.
enum class CvBorder : uint8_t { kConstant = 0, kReplicate = 1, kReflect = 2, kWrap = 3, kReflect101 = 4 };
inline constexpr int kCvBorders = 5;

// Where index i is in a dimension of `size` elements; -1 for kConstant beyond it.
int64_t border_index(int64_t i, int64_t size, CvBorder border);

struct CvWarp {
  bool linear = true;    // else nearest
  bool inverse = false;  // whether matrices lead from results to images; else they are inverted
  CvBorder border = CvBorder::kConstant;
  std::array<uint8_t, 4> value{};  // of the border; channel c takes the one at c % 4
};

// The rows of a matrix, one after the other.
using AffineMatrix = std::array<double, 6>;
using PerspectiveMatrix = std::array<double, 9>;

// Fewer rows and columns than this.
inline constexpr int64_t kMostWarped = INT16_MAX;

// Writes all of `results`. REQUIRES: results.count images and matrices; images have a pixel and the
// channels of the results; all sides are less than kMostWarped.
void cv_warp_affine(std::span<const Image<const uint8_t>> images, std::span<const AffineMatrix> matrices,
                    const ImageBatch<uint8_t>& results, const CvWarp& warp);
void cv_warp_perspective(std::span<const Image<const uint8_t>> images, std::span<const PerspectiveMatrix> matrices,
                         const ImageBatch<uint8_t>& results, const CvWarp& warp);

}  // namespace hetero::backend
