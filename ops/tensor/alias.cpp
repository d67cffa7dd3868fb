#include "ops/tensor/alias.h"

#include <ATen/EmptyTensor.h>

namespace hetero::ops {

at::Tensor tensor_over(c10::Storage bytes, const at::Tensor& tensor) {
  const c10::DispatchKey key = bytes.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  at::Tensor alias =
      at::detail::make_tensor<c10::TensorImpl>(std::move(bytes), c10::DispatchKeySet(key), tensor.dtype());
  c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return alias;
}

}  // namespace hetero::ops
