// hetero::cv_gaussian_blur, hetero::cv_box_blur and hetero::cv_median_blur: OpenCV's smoothing of a
// batch.
//
//   cv_gaussian_blur(Tensor images, int[2] ksize, float[2] sigma, int border) -> Tensor
//   cv_box_blur(Tensor images, int[2] ksize, int border) -> Tensor
//   cv_median_blur(Tensor images, int ksize) -> Tensor
//
// images   uint8 [images, height, width, channels], or [height, width, channels]
// ksize    the width and the height, as cv2 has them; of a Gaussian odd, or 0 to follow from sigma
// sigma    along the width and along the height; what is not positive follows from ksize or from
//          the first
// border   cv2's number, but not BORDER_WRAP
// result   uint8, of the images' sizes
//
// backend/cpu/image/cv_filter.h says how bytes compare with cv2's. Tensors of the device are
// recorded by the catch-all.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>

#include "backend/cpu/image/cv_filter.h"
#include "ops/host/images.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using backend::CvBorder;
using backend::CvKernelSize;

CvBorder checked_border(const char* name, int64_t border) {
  check_choice(name, "border", border, backend::kCvBorders);
  TORCH_CHECK_VALUE(static_cast<CvBorder>(border) != CvBorder::kWrap, name, ": border must not be BORDER_WRAP");
  return static_cast<CvBorder>(border);
}

void check_kernel(const char* name, int64_t size, bool odd) {
  TORCH_CHECK_VALUE(size >= 1 && size <= backend::kMostKernel && (!odd || size % 2 == 1), name, ": ksize must be ",
                    odd ? "odd and " : "", "1 to ", backend::kMostKernel, ", not ", size);
}

Tensor empty_filtered(const char* name, const Tensor& images) {
  check_batch(name, images);
  return at::empty(images.sizes(), images.options().memory_format(at::MemoryFormat::Contiguous));
}

// ---- cv_gaussian_blur

struct Gaussian {
  CvKernelSize size;
  double sigma_x, sigma_y;
  CvBorder border;

  Gaussian(at::IntArrayRef ksize, at::ArrayRef<double> sigma, int64_t border_mode) {
    constexpr const char* kName = "cv_gaussian_blur";
    border = checked_border(kName, border_mode);
    TORCH_CHECK_VALUE(ksize.size() == 2 && sigma.size() == 2, kName, ": ksize and sigma have 2 numbers each");
    TORCH_CHECK_VALUE(std::isfinite(sigma[0]) && std::isfinite(sigma[1]), kName, ": sigma must be finite, not ", sigma);
    sigma_x = sigma[0];
    sigma_y = sigma[1] > 0 ? sigma[1] : sigma[0];
    size = {side(ksize[1], sigma_y), side(ksize[0], sigma_x)};
    check_kernel(kName, size.width, true);
    check_kernel(kName, size.height, true);
  }

 private:
  static int64_t side(int64_t given, double sigma) {
    return given == 0 && sigma > 0 && sigma < static_cast<double>(backend::kMostKernel) ? backend::gaussian_size(sigma)
                                                                                        : given;
  }
};

Tensor cv_gaussian_blur_meta(const Tensor& images, at::IntArrayRef ksize, at::ArrayRef<double> sigma, int64_t border) {
  const Gaussian checked(ksize, sigma, border);
  return empty_filtered("cv_gaussian_blur", images);
}

Tensor cv_gaussian_blur(const Tensor& given, at::IntArrayRef ksize, at::ArrayRef<double> sigma, int64_t border) {
  const Gaussian blur(ksize, sigma, border);
  Tensor results = empty_filtered("cv_gaussian_blur", given);
  const Tensor images = given.contiguous();
  backend::cv_gaussian_blur(const_batch_of(images), batch_of<uint8_t>(results), blur.size, blur.sigma_x, blur.sigma_y,
                            blur.border);
  return results;
}

// ---- cv_box_blur

Tensor cv_box_blur_meta(const Tensor& images, at::IntArrayRef ksize, int64_t border) {
  checked_border("cv_box_blur", border);
  TORCH_CHECK_VALUE(ksize.size() == 2, "cv_box_blur: ksize has 2 numbers");
  for (const int64_t side : ksize) check_kernel("cv_box_blur", side, false);
  return empty_filtered("cv_box_blur", images);
}

Tensor cv_box_blur(const Tensor& given, at::IntArrayRef ksize, int64_t border) {
  Tensor results = cv_box_blur_meta(given, ksize, border);
  const Tensor images = given.contiguous();
  backend::cv_box_blur(const_batch_of(images), batch_of<uint8_t>(results), {ksize[1], ksize[0]},
                       static_cast<CvBorder>(border));
  return results;
}

// ---- cv_median_blur

Tensor cv_median_blur_meta(const Tensor& images, int64_t ksize) {
  check_kernel("cv_median_blur", ksize, true);
  return empty_filtered("cv_median_blur", images);
}

Tensor cv_median_blur(const Tensor& given, int64_t ksize) {
  Tensor results = cv_median_blur_meta(given, ksize);
  const Tensor images = given.contiguous();
  backend::cv_median_blur(const_batch_of(images), batch_of<uint8_t>(results), ksize);
  return results;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def("cv_gaussian_blur(Tensor images, int[2] ksize, float[2] sigma, int border) -> Tensor");
  library.def("cv_box_blur(Tensor images, int[2] ksize, int border) -> Tensor");
  library.def("cv_median_blur(Tensor images, int ksize) -> Tensor");
}

TORCH_LIBRARY_IMPL(hetero, CPU, library) {
  library.impl("cv_gaussian_blur", TORCH_FN(cv_gaussian_blur));
  library.impl("cv_box_blur", TORCH_FN(cv_box_blur));
  library.impl("cv_median_blur", TORCH_FN(cv_median_blur));
}

TORCH_LIBRARY_IMPL(hetero, Meta, library) {
  library.impl("cv_gaussian_blur", TORCH_FN(cv_gaussian_blur_meta));
  library.impl("cv_box_blur", TORCH_FN(cv_box_blur_meta));
  library.impl("cv_median_blur", TORCH_FN(cv_median_blur_meta));
}

}  // namespace hetero::ops
