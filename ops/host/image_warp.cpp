// hetero::cv_warp_affine, hetero::cv_warp_perspective and hetero::pil_affine: images that are
// looked up at other places.
//
//   cv_warp_affine(Tensor[] images, Tensor matrices, int[2] size, int flags, int border_mode,
//                  float[] border_value) -> Tensor
//   cv_warp_perspective: the same, with matrices of [3, 3]
//   pil_affine(Tensor[] images, Tensor coefficients, int[2] size, int filter, float[] fill)
//       -> Tensor
//
// images         uint8 [height, width, channels]
// matrices       float64 [images, 2, 3] or [images, 3, 3], as a caller of cv2 has them
// coefficients   float64 [images, 6], as a caller of Pillow's Image.transform has them
// size           the height and the width of the results (cv2 and Pillow have the width first)
// flags          cv2's INTER_NEAREST or INTER_LINEAR, with or without WARP_INVERSE_MAP
// border_mode    cv2's number, BORDER_CONSTANT to BORDER_REFLECT_101
// border_value   up to four values; missing ones are 0
// filter         Pillow's NEAREST, BILINEAR or BICUBIC
// fill           a value for each channel; none are zeros
// result         uint8 [images, height, width, channels]
//
// backend/cpu/image/cv_warp.h and pil_affine.h say how results compare with cv2's and Pillow's.
// Tensors of the device are recorded by the catch-all.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/image/cv_warp.h"
#include "backend/cpu/image/pil_affine.h"
#include "ops/host/images.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using at::TensorList;

// ---- cv_warp_affine, cv_warp_perspective

constexpr int64_t kInverse = 16;  // cv2.WARP_INVERSE_MAP

backend::CvWarp checked_warp(const char* name, int64_t flags, int64_t border_mode, at::ArrayRef<double> border_value) {
  const int64_t interpolation = flags & ~kInverse;
  TORCH_CHECK_VALUE(interpolation == 0 || interpolation == 1, name,
                    ": flags must be INTER_NEAREST or INTER_LINEAR, with or without WARP_INVERSE_MAP, not ", flags);
  check_choice(name, "border_mode", border_mode, backend::kCvBorders);
  backend::CvWarp warp{.linear = interpolation == 1,
                       .inverse = (flags & kInverse) != 0,
                       .border = static_cast<backend::CvBorder>(border_mode)};
  TORCH_CHECK_VALUE(border_value.size() <= warp.value.size(), name, ": border_value has at most 4 values, not ",
                    border_value.size());
  for (size_t i = 0; i < border_value.size(); ++i) {
    TORCH_CHECK_VALUE(std::isfinite(border_value[i]), name, ": border_value must be finite, not ", border_value[i]);
    warp.value[i] = static_cast<uint8_t>(std::nearbyint(std::clamp(border_value[i], 0.0, 255.0)));
  }
  return warp;
}

Tensor empty_warped(const char* name, TensorList images, const Tensor& matrices, at::IntArrayRef size, int64_t rows) {
  check_images(name, images, ImageTypes::kBytes);
  check_numbers(name, "matrices", matrices, {static_cast<int64_t>(images.size()), rows, 3});
  check_size(name, size);
  for (size_t i = 0; i < images.size(); ++i) {
    TORCH_CHECK(images[i].size(0) < backend::kMostWarped && images[i].size(1) < backend::kMostWarped, name, ": image ",
                i, " is too large: ", images[i].sizes());
  }
  TORCH_CHECK(size[0] < backend::kMostWarped && size[1] < backend::kMostWarped, name, ": size is too large: ", size);
  return empty_images(images, size);
}

template <typename Matrix>
std::vector<Matrix> matrices_of(const Tensor& given) {
  const Tensor dense = given.contiguous();
  std::vector<Matrix> matrices(static_cast<size_t>(dense.size(0)));
  const auto* number = dense.const_data_ptr<double>();
  for (Matrix& matrix : matrices) {
    std::copy_n(number, matrix.size(), matrix.begin());
    number += matrix.size();
  }
  return matrices;
}

Tensor cv_warp_affine_meta(TensorList images, const Tensor& matrices, at::IntArrayRef size, int64_t flags,
                           int64_t border_mode, at::ArrayRef<double> border_value) {
  checked_warp("cv_warp_affine", flags, border_mode, border_value);
  return empty_warped("cv_warp_affine", images, matrices, size, 2);
}

Tensor cv_warp_affine(TensorList images, const Tensor& matrices, at::IntArrayRef size, int64_t flags,
                      int64_t border_mode, at::ArrayRef<double> border_value) {
  const backend::CvWarp warp = checked_warp("cv_warp_affine", flags, border_mode, border_value);
  Tensor results = empty_warped("cv_warp_affine", images, matrices, size, 2);
  const ImageList<uint8_t> list(images);
  backend::cv_warp_affine(list.images(), matrices_of<backend::AffineMatrix>(matrices), batch_of<uint8_t>(results),
                          warp);
  return results;
}

Tensor cv_warp_perspective_meta(TensorList images, const Tensor& matrices, at::IntArrayRef size, int64_t flags,
                                int64_t border_mode, at::ArrayRef<double> border_value) {
  checked_warp("cv_warp_perspective", flags, border_mode, border_value);
  return empty_warped("cv_warp_perspective", images, matrices, size, 3);
}

Tensor cv_warp_perspective(TensorList images, const Tensor& matrices, at::IntArrayRef size, int64_t flags,
                           int64_t border_mode, at::ArrayRef<double> border_value) {
  const backend::CvWarp warp = checked_warp("cv_warp_perspective", flags, border_mode, border_value);
  Tensor results = empty_warped("cv_warp_perspective", images, matrices, size, 3);
  const ImageList<uint8_t> list(images);
  backend::cv_warp_perspective(list.images(), matrices_of<backend::PerspectiveMatrix>(matrices),
                               batch_of<uint8_t>(results), warp);
  return results;
}

// ---- pil_affine

std::vector<uint8_t> checked_fill(at::ArrayRef<double> fill, int64_t channels) {
  TORCH_CHECK_VALUE(fill.empty() || static_cast<int64_t>(fill.size()) == channels,
                    "pil_affine: fill must have a value for each of ", channels, " channels, or none, not ",
                    fill.size());
  std::vector<uint8_t> values(static_cast<size_t>(channels), 0);
  for (size_t i = 0; i < fill.size(); ++i) {
    TORCH_CHECK_VALUE(fill[i] >= 0 && fill[i] <= 255 && fill[i] == std::floor(fill[i]),
                      "pil_affine: fill must be whole numbers from 0 to 255, not ", fill[i]);
    values[i] = static_cast<uint8_t>(fill[i]);
  }
  return values;
}

Tensor pil_affine_meta(TensorList images, const Tensor& coefficients, at::IntArrayRef size, int64_t filter,
                       at::ArrayRef<double> fill) {
  check_images("pil_affine", images, ImageTypes::kBytes);
  check_numbers("pil_affine", "coefficients", coefficients, {static_cast<int64_t>(images.size()), 6});
  check_size("pil_affine", size);
  TORCH_CHECK_VALUE(filter == 0 || filter == 2 || filter == 3,
                    "pil_affine: filter must be 0, 2 or 3 (NEAREST, BILINEAR, BICUBIC), not ", filter);
  checked_fill(fill, images[0].size(2));
  return empty_images(images, size);
}

Tensor pil_affine(TensorList images, const Tensor& coefficients, at::IntArrayRef size, int64_t filter,
                  at::ArrayRef<double> fill) {
  Tensor results = pil_affine_meta(images, coefficients, size, filter, fill);
  const ImageList<uint8_t> list(images);
  backend::pil_affine(list.images(), matrices_of<backend::PilAffine>(coefficients), batch_of<uint8_t>(results),
                      static_cast<backend::PilTransformFilter>(filter), checked_fill(fill, images[0].size(2)));
  return results;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def(
      "cv_warp_affine(Tensor[] images, Tensor matrices, int[2] size, int flags, int border_mode, "
      "float[] border_value) -> Tensor");
  library.def(
      "cv_warp_perspective(Tensor[] images, Tensor matrices, int[2] size, int flags, int border_mode, "
      "float[] border_value) -> Tensor");
  library.def("pil_affine(Tensor[] images, Tensor coefficients, int[2] size, int filter, float[] fill) -> Tensor");
}

TORCH_LIBRARY_IMPL(hetero, CPU, library) {
  library.impl("cv_warp_affine", TORCH_FN(cv_warp_affine));
  library.impl("cv_warp_perspective", TORCH_FN(cv_warp_perspective));
  library.impl("pil_affine", TORCH_FN(pil_affine));
}

TORCH_LIBRARY_IMPL(hetero, Meta, library) {
  library.impl("cv_warp_affine", TORCH_FN(cv_warp_affine_meta));
  library.impl("cv_warp_perspective", TORCH_FN(cv_warp_perspective_meta));
  library.impl("pil_affine", TORCH_FN(pil_affine_meta));
}

}  // namespace hetero::ops
