// What operators on images share: lists of images as kernels see them, and checks of arguments.
//
// An image is a tensor [height, width, channels], uint8 or float32, on the CPU when a kernel runs.
// Images of a list may have different heights and widths; results are one dense tensor [images,
// height, width, channels].
//
// Thread safety: pure functions.

#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "backend/cpu/image/image.h"

namespace hetero::ops {

// "uint8" or "uint8 or float32" images of 1 to kMostChannels channels with a pixel each, all of one
// dtype and number of channels; at least one of them.
inline constexpr int64_t kMostChannels = 64;
enum class ImageTypes : uint8_t { kBytes, kBytesAndFloats };
void check_images(const char* name, at::TensorList images, ImageTypes types);
// A batch: uint8 [images, height, width, channels] or [height, width, channels]. Any size may be 0
// but that of the channels.
void check_batch(const char* name, const at::Tensor& images);
// [height, width] of results.
void check_size(const char* name, at::IntArrayRef size);
// One of the numbers 0 to count - 1.
void check_choice(const char* name, const char* what, int64_t value, int64_t count);
// A tensor of doubles on the CPU with these sizes.
void check_numbers(const char* name, const char* what, const at::Tensor& tensor, at::IntArrayRef sizes);

// [images, height, width, channels]
at::Tensor empty_images(at::TensorList images, at::IntArrayRef size);

// Views of tensors. Keeps dense copies of those whose pixels are not dense.
template <typename T>
class ImageList {
 public:
  explicit ImageList(at::TensorList tensors);
  const std::vector<backend::Image<const T>>& images() const { return images_; }

 private:
  std::vector<at::Tensor> copies_;
  std::vector<backend::Image<const T>> images_;
};
extern template class ImageList<uint8_t>;
extern template class ImageList<float>;

// REQUIRES: a dense tensor [count, height, width, channels] or [height, width, channels].
template <typename T>
backend::ImageBatch<T> batch_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<T>(), tensor.dim() == 4 ? tensor.size(0) : 1, tensor.size(-3), tensor.size(-2),
          tensor.size(-1)};
}
inline backend::ImageBatch<const uint8_t> const_batch_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<uint8_t>(), tensor.dim() == 4 ? tensor.size(0) : 1, tensor.size(-3), tensor.size(-2),
          tensor.size(-1)};
}

}  // namespace hetero::ops
