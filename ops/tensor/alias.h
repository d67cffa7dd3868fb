// Tensors of other devices over the bytes of a hetero tensor: what kernels are called with.

#pragma once

#include <ATen/core/Tensor.h>

namespace hetero::ops {

// A tensor over `bytes`, on their device, that looks like `tensor`.
at::Tensor tensor_over(c10::Storage bytes, const at::Tensor& tensor);

}  // namespace hetero::ops
