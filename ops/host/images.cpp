#include "ops/host/images.h"

#include <ATen/ops/empty.h>

#include <cstdint>

namespace hetero::ops {

using at::Tensor;
using at::TensorList;

void check_images(const char* name, TensorList images, ImageTypes types) {
  TORCH_CHECK(!images.empty(), name, ": there must be an image");
  const Tensor& first = images[0];
  for (size_t i = 0; i < images.size(); ++i) {
    const Tensor& image = images[i];
    TORCH_CHECK(image.dim() == 3, name, ": image ", i, " must be [height, width, channels], not ", image.sizes());
    const at::ScalarType type = image.scalar_type();
    if (types == ImageTypes::kBytes) {
      TORCH_CHECK_TYPE(type == at::kByte, name, ": image ", i, " must be uint8, not ", type);
    } else {
      TORCH_CHECK_TYPE(type == at::kByte || type == at::kFloat, name, ": image ", i, " must be uint8 or float32, not ",
                       type);
      TORCH_CHECK_TYPE(type == first.scalar_type(), name, ": image ", i, " is ", type, ", and image 0 is ",
                       first.scalar_type());
    }
    const int64_t height = image.size(0), width = image.size(1), channels = image.size(2);
    TORCH_CHECK(height > 0 && width > 0, name, ": image ", i, " has no pixel: ", image.sizes());
    TORCH_CHECK(channels >= 1 && channels <= kMostChannels, name, ": image ", i, " must have 1 to ", kMostChannels,
                " channels, not ", channels);
    TORCH_CHECK(channels == first.size(2), name, ": image ", i, " has ", channels, " channels, and image 0 has ",
                first.size(2));
    TORCH_CHECK(height <= INT32_MAX / 256 && width <= INT32_MAX / 256 / channels, name, ": image ", i,
                " is too large: ", image.sizes());
  }
}

void check_batch(const char* name, const Tensor& images) {
  TORCH_CHECK(images.dim() == 3 || images.dim() == 4, name,
              ": images must be [images, height, width, channels] or [height, width, channels], not ", images.sizes());
  TORCH_CHECK_TYPE(images.scalar_type() == at::kByte, name, ": images must be uint8, not ", images.scalar_type());
  TORCH_CHECK(images.size(-1) >= 1 && images.size(-1) <= kMostChannels, name, ": images must have 1 to ", kMostChannels,
              " channels, not ", images.size(-1));
  TORCH_CHECK(images.size(-3) <= INT32_MAX / 256 && images.size(-2) <= INT32_MAX / 256 / images.size(-1), name,
              ": images are too large: ", images.sizes());
}

void check_size(const char* name, at::IntArrayRef size) {
  TORCH_CHECK(size.size() == 2 && size[0] > 0 && size[1] > 0 && size[0] <= INT32_MAX / 256 &&
                  size[1] <= INT32_MAX / 256 / kMostChannels,
              name, ": size must be a positive height and width, not ", size);
}

void check_choice(const char* name, const char* what, int64_t value, int64_t count) {
  TORCH_CHECK_VALUE(value >= 0 && value < count, name, ": ", what, " must be 0 to ", count - 1, ", not ", value);
}

void check_numbers(const char* name, const char* what, const Tensor& tensor, at::IntArrayRef sizes) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kDouble, name, ": ", what, " must be float64, not ",
                   tensor.scalar_type());
  TORCH_CHECK(tensor.sizes() == sizes, name, ": ", what, " must be ", sizes, ", not ", tensor.sizes());
}

Tensor empty_images(TensorList images, at::IntArrayRef size) {
  const Tensor& first = images[0];
  return at::empty({static_cast<int64_t>(images.size()), size[0], size[1], first.size(2)}, first.options());
}

template <typename T>
ImageList<T>::ImageList(TensorList tensors) {
  copies_.reserve(tensors.size());
  images_.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    const int64_t channels = tensor.size(2);
    const bool dense_pixels = (channels == 1 || tensor.stride(2) == 1) &&
                              (tensor.size(1) == 1 || tensor.stride(1) == channels) &&
                              (tensor.size(0) == 1 || tensor.stride(0) >= tensor.size(1) * channels);
    const Tensor& image = dense_pixels ? tensor : copies_.emplace_back(tensor.contiguous());
    const int64_t stride = image.size(0) == 1 ? image.size(1) * channels : image.stride(0);
    images_.push_back({image.const_data_ptr<T>(), image.size(0), image.size(1), channels, stride});
  }
}

template class ImageList<uint8_t>;
template class ImageList<float>;

}  // namespace hetero::ops
