// hetero::cv_color: OpenCV's conversions of colours, of a batch.
//
//   cv_color(Tensor images, int code) -> Tensor
//
// images   uint8 [images, height, width, 3], or [height, width, 3]
// code     cv2's number, of those that backend/cpu/image/cv_color.h names; it also says how bytes
//          compare with cv2's
// result   uint8, of the images' height and width, with 3 channels, or 1 for grey
//
// Tensors of the device are recorded by the catch-all.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "backend/cpu/image/cv_color.h"
#include "ops/host/images.h"

namespace hetero::ops {
namespace {

using at::Tensor;

Tensor cv_color_meta(const Tensor& images, int64_t code) {
  check_batch("cv_color", images);
  TORCH_CHECK_VALUE(backend::is_color_code(code), "cv_color: code ", code, " is not one of the conversions it has");
  TORCH_CHECK(images.size(-1) == 3, "cv_color: images must have 3 channels, not ", images.size(-1));
  std::vector<int64_t> sizes = images.sizes().vec();
  sizes.back() = backend::color_channels(static_cast<backend::CvColor>(code));
  return at::empty(sizes, images.options());
}

Tensor cv_color(const Tensor& given, int64_t code) {
  Tensor results = cv_color_meta(given, code);
  const Tensor images = given.contiguous();
  backend::cv_color(const_batch_of(images), batch_of<uint8_t>(results), static_cast<backend::CvColor>(code));
  return results;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hetero, library) { library.def("cv_color(Tensor images, int code) -> Tensor"); }
TORCH_LIBRARY_IMPL(hetero, CPU, library) { library.impl("cv_color", TORCH_FN(cv_color)); }
TORCH_LIBRARY_IMPL(hetero, Meta, library) { library.impl("cv_color", TORCH_FN(cv_color_meta)); }

}  // namespace hetero::ops
