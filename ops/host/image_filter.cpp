// hetero::cv_gaussian_blur, hetero::cv_box_blur and hetero::cv_median_blur: OpenCV's smoothing of a
// batch.
//
//   cv_gaussian_blur(Tensor images, int[2] ksize, Tensor sigmas, int border) -> Tensor
//   cv_box_blur(Tensor images, int[2] ksize, int border) -> Tensor
//   cv_median_blur(Tensor images, int ksize) -> Tensor
//
// images   uint8 [images, height, width, channels], or [height, width, channels]
// ksize    the width and the height, as cv2 has them; of a Gaussian odd, or 0 to follow from sigma
// sigmas   float64 [images, 2], or [2]: along the width and along the height; what is not positive
//          follows from ksize or from the first. Batches with other sigmas are the same program
// border   cv2's number, but not BORDER_WRAP
// result   uint8, of the images' sizes
//
// backend/cpu/image/cv_filter.h says how bytes compare with cv2's. Tensors of the device are
// recorded by the catch-all.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
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

constexpr const char* kGaussian = "cv_gaussian_blur";

CvKernelSize gaussian_side(at::IntArrayRef ksize, double sigma_x, double sigma_y) {
  const auto side = [](int64_t given, double sigma) {
    const bool follows = given == 0 && sigma > 0 && sigma < static_cast<double>(backend::kMostKernel);
    const int64_t size = follows ? backend::gaussian_size(sigma) : given;
    check_kernel(kGaussian, size, true);
    return size;
  };
  return {side(ksize[1], sigma_y), side(ksize[0], sigma_x)};
}

Tensor cv_gaussian_blur_meta(const Tensor& images, at::IntArrayRef ksize, const Tensor& sigmas, int64_t border) {
  checked_border(kGaussian, border);
  TORCH_CHECK_VALUE(ksize.size() == 2, kGaussian, ": ksize has 2 numbers");
  for (const int64_t side : ksize) {
    if (side != 0) check_kernel(kGaussian, side, true);
  }
  Tensor results = empty_filtered(kGaussian, images);
  const int64_t sizes[] = {images.size(0), 2};
  check_numbers(kGaussian, "sigmas", sigmas,
                images.dim() == 4 ? at::IntArrayRef(sizes) : at::IntArrayRef(sizes + 1, 1));
  return results;
}

Tensor cv_gaussian_blur(const Tensor& given, at::IntArrayRef ksize, const Tensor& sigmas, int64_t border) {
  Tensor results = cv_gaussian_blur_meta(given, ksize, sigmas, border);
  const Tensor images = given.contiguous(), numbers = sigmas.contiguous();
  backend::ImageBatch<const uint8_t> from = const_batch_of(images);
  backend::ImageBatch<uint8_t> to = batch_of<uint8_t>(results);
  const int64_t count = from.count, elements = from.height * from.width * from.channels;
  const auto* sigma = numbers.const_data_ptr<double>();
  for (int64_t i = 0; i < count; i += from.count) {
    TORCH_CHECK_VALUE(std::isfinite(sigma[2 * i]) && std::isfinite(sigma[2 * i + 1]), kGaussian,
                      ": sigmas must be finite, not ", sigma[2 * i], " and ", sigma[2 * i + 1]);
    from.count = 1;  // neighbors of one sigma are blurred together
    while (i + from.count < count && std::equal(sigma + 2 * i, sigma + 2 * i + 2, sigma + 2 * (i + from.count))) {
      ++from.count;
    }
    to.count = from.count;
    const double sigma_x = sigma[2 * i], sigma_y = sigma[2 * i + 1] > 0 ? sigma[2 * i + 1] : sigma_x;
    backend::cv_gaussian_blur(from, to, gaussian_side(ksize, sigma_x, sigma_y), sigma_x, sigma_y,
                              static_cast<CvBorder>(border));
    from.data += from.count * elements;
    to.data += from.count * elements;
  }
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
  library.def("cv_gaussian_blur(Tensor images, int[2] ksize, Tensor sigmas, int border) -> Tensor");
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
