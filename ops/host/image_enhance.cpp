// hetero::pil_enhance: Pillow's changes of brightness, contrast and colour.
//
//   pil_enhance(Tensor[] images, Tensor properties, Tensor factors) -> Tensor
//
// images       uint8 [height, width, channels] of one size, with 1 or 3 channels: modes L and RGB
// properties   int64 [images]: 0 is ImageEnhance.Brightness, 1 is Contrast, 2 is Color
// factors      float64 [images], finite: as a caller of enhance() has them
// result       uint8 [images, height, width, channels]
//
// Images have properties of their own so that a batch in which they are changed in different orders
// stays one batch. Tensors of the device are recorded by the catch-all.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "backend/cpu/image/pil_enhance.h"
#include "ops/host/images.h"

namespace hetero::ops {
namespace {

using at::Tensor;
using at::TensorList;

Tensor pil_enhance_meta(TensorList images, const Tensor& properties, const Tensor& factors) {
  check_images("pil_enhance", images, ImageTypes::kBytes);
  const int64_t channels = images[0].size(2);
  TORCH_CHECK(channels == 1 || channels == 3, "pil_enhance: images must have 1 or 3 channels, not ", channels);
  for (size_t i = 1; i < images.size(); ++i) {
    TORCH_CHECK(images[i].sizes() == images[0].sizes(), "pil_enhance: image ", i, " is ", images[i].sizes(),
                ", and image 0 is ", images[0].sizes());
  }
  const auto count = static_cast<int64_t>(images.size());
  TORCH_CHECK_TYPE(properties.scalar_type() == at::kLong, "pil_enhance: properties must be int64, not ",
                   properties.scalar_type());
  TORCH_CHECK(properties.sizes() == at::IntArrayRef(count), "pil_enhance: properties must be [", count, "], not ",
              properties.sizes());
  check_numbers("pil_enhance", "factors", factors, {count});
  return empty_images(images, images[0].sizes().slice(0, 2));
}

std::vector<backend::PilEnhancement> checked_enhancements(const Tensor& properties, const Tensor& factors) {
  const Tensor dense_properties = properties.contiguous(), dense_factors = factors.contiguous();
  const auto* const property = dense_properties.const_data_ptr<int64_t>();
  const auto* const factor = dense_factors.const_data_ptr<double>();
  std::vector<backend::PilEnhancement> result;
  for (int64_t i = 0; i < properties.size(0); ++i) {
    check_choice("pil_enhance", "properties", property[i], backend::kPilProperties);
    const auto single = static_cast<float>(factor[i]);
    TORCH_CHECK_VALUE(std::isfinite(single), "pil_enhance: factors must be finite, not ", factor[i]);
    result.push_back({static_cast<backend::PilProperty>(property[i]), single});
  }
  return result;
}

Tensor pil_enhance(TensorList images, const Tensor& properties, const Tensor& factors) {
  Tensor results = pil_enhance_meta(images, properties, factors);
  const ImageList<uint8_t> list(images);
  backend::pil_enhance(list.images(), checked_enhancements(properties, factors), batch_of<uint8_t>(results));
  return results;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hetero, library) {
  library.def("pil_enhance(Tensor[] images, Tensor properties, Tensor factors) -> Tensor");
}
TORCH_LIBRARY_IMPL(hetero, CPU, library) { library.impl("pil_enhance", TORCH_FN(pil_enhance)); }
TORCH_LIBRARY_IMPL(hetero, Meta, library) { library.impl("pil_enhance", TORCH_FN(pil_enhance_meta)); }

}  // namespace hetero::ops
