// cv_gaussian_blur, cv_box_blur, cv_median_blur: OpenCV's smoothing of images.
//
// Bytes are equal to those of opencv-python-headless 4.14.0.94 on x86-64.
//
//   Gaussian   weights of 8 bits that add up to 256; one rounding at the end
//   box        whole sums; averages of more than 256 pixels are floats
//   median     of a square, with the border's pixels repeated
//
// Thread safety: any thread; calls share nothing. Each thread keeps its memory from call to call.

#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/image/cv_warp.h"
#include "backend/cpu/image/image.h"

namespace hetero::backend {

struct CvKernelSize {
  int64_t height = 1;
  int64_t width = 1;
};
inline constexpr int64_t kMostKernel = 1023;

// The weights of `size` pixels, which add up to 256. A sigma that is not positive follows from the
// size. REQUIRES: an odd size.
std::vector<int32_t> gaussian_weights(int64_t size, double sigma);
// The size that a sigma has if none is given.
int64_t gaussian_size(double sigma);

// Write all of `results`. REQUIRES: results of the images' sizes, which share no memory with them;
// odd sizes for Gaussian and median, no size above kMostKernel; a border other than kWrap.
void cv_gaussian_blur(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, CvKernelSize size,
                      double sigma_x, double sigma_y, CvBorder border);
void cv_box_blur(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, CvKernelSize size,
                 CvBorder border);
void cv_median_blur(const ImageBatch<const uint8_t>& images, const ImageBatch<uint8_t>& results, int64_t size);

}  // namespace hetero::backend
