// hetero::cv_resize and hetero::pil_resize: images of any sizes become one batch of one size.
//
//   cv_resize(Tensor[] images, int[2] size, int interpolation) -> Tensor
//   pil_resize(Tensor[] images, Tensor boxes, int[2] size, int filter) -> Tensor
//
// images        uint8 [height, width, channels]; cv_resize also takes float32
// size          the height and the width of the results (cv2 and Pillow have the width first)
// interpolation, filter   cv2's and Pillow's numbers; cv2's INTER_LINEAR_EXACT takes uint8 only
// boxes         float64 [images, 4]: Pillow's box of each image, (left, upper, right, lower)
// result        [images, height, width, channels], of the images' dtype
//
// backend/cpu/image/cv_resize.h and pil_resize.h say how results compare with cv2's and Pillow's.
// Tensors of the device are recorded by the catch-all. A box that does not fit is found when the
// kernel runs: on the device that is where a value is needed.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <vector>

#include "backend/cpu/image/cv_resize.h"
#include "backend/cpu/image/pil_resize.h"
#include "ops/host/images.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using at::TensorList;
using backend::CvInterpolation;

// ---- cv_resize

Tensor cv_resize_meta(TensorList images, at::IntArrayRef size, int64_t interpolation) {
  check_images("cv_resize", images, ImageTypes::kBytesAndFloats);
  check_size("cv_resize", size);
  check_choice("cv_resize", "interpolation", interpolation, backend::kCvInterpolations);
  const bool exact = static_cast<CvInterpolation>(interpolation) == CvInterpolation::kLinearExact;
  TORCH_CHECK_TYPE(!exact || images[0].scalar_type() == at::kByte,
                   "cv_resize: INTER_LINEAR_EXACT takes uint8 images, not ", images[0].scalar_type());
  return empty_images(images, size);
}

Tensor cv_resize(TensorList images, at::IntArrayRef size, int64_t interpolation) {
  Tensor results = cv_resize_meta(images, size, interpolation);
  const auto chosen = static_cast<CvInterpolation>(interpolation);
  if (results.scalar_type() == at::kByte) {
    const ImageList<uint8_t> list(images);
    backend::cv_resize(list.images(), batch_of<uint8_t>(results), chosen);
  } else {
    const ImageList<float> list(images);
    backend::cv_resize(list.images(), batch_of<float>(results), chosen);
  }
  return results;
}

// ---- pil_resize

Tensor pil_resize_meta(TensorList images, const Tensor& boxes, at::IntArrayRef size, int64_t filter) {
  check_images("pil_resize", images, ImageTypes::kBytes);
  check_numbers("pil_resize", "boxes", boxes, {static_cast<int64_t>(images.size()), 4});
  check_size("pil_resize", size);
  check_choice("pil_resize", "filter", filter, backend::kPilFilters);
  return empty_images(images, size);
}

std::vector<backend::PilBox> checked_boxes(const Tensor& given, TensorList images) {
  const Tensor boxes = given.contiguous();
  const auto* number = boxes.const_data_ptr<double>();
  std::vector<backend::PilBox> result;
  for (size_t i = 0; i < images.size(); ++i, number += 4) {
    const backend::PilBox box{static_cast<float>(number[0]), static_cast<float>(number[1]),
                              static_cast<float>(number[2]), static_cast<float>(number[3])};
    TORCH_CHECK_VALUE(box.fits(images[i].size(0), images[i].size(1)), "pil_resize: box ", i, " (", number[0], ", ",
                      number[1], ", ", number[2], ", ", number[3], ") does not fit into an image of ",
                      images[i].size(1), " x ", images[i].size(0));
    result.push_back(box);
  }
  return result;
}

Tensor pil_resize(TensorList images, const Tensor& boxes, at::IntArrayRef size, int64_t filter) {
  Tensor results = pil_resize_meta(images, boxes, size, filter);
  const ImageList<uint8_t> list(images);
  backend::pil_resize(list.images(), checked_boxes(boxes, images), batch_of<uint8_t>(results),
                      static_cast<backend::PilFilter>(filter));
  return results;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def("cv_resize(Tensor[] images, int[2] size, int interpolation) -> Tensor");
  library.def("pil_resize(Tensor[] images, Tensor boxes, int[2] size, int filter) -> Tensor");
}

TORCH_LIBRARY_IMPL(hetero, CPU, library) {
  library.impl("cv_resize", TORCH_FN(cv_resize));
  library.impl("pil_resize", TORCH_FN(pil_resize));
}

TORCH_LIBRARY_IMPL(hetero, Meta, library) {
  library.impl("cv_resize", TORCH_FN(cv_resize_meta));
  library.impl("pil_resize", TORCH_FN(pil_resize_meta));
}

TORCH_LIBRARY_IMPL(hetero, Autograd, library) {
  for (const char* name : {"cv_resize", "pil_resize"}) {
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hetero::ops
