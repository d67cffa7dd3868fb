#include "ops/tensor/sparse.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

namespace hetero::ops {
namespace {

at::SparseTensorImpl* coo(const at::Tensor& sparse) {
  return static_cast<at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
}
at::SparseCsrTensorImpl* compressed(const at::Tensor& sparse) {
  return static_cast<at::SparseCsrTensorImpl*>(sparse.unsafeGetTensorImpl());
}

}  // namespace

std::vector<at::Tensor> members_of(const at::Tensor& sparse) {
  if (sparse.layout() == at::kSparse) return {coo(sparse)->indices(), coo(sparse)->values()};
  return {compressed(sparse)->compressed_indices(), compressed(sparse)->plain_indices(), compressed(sparse)->values()};
}

at::Tensor with_members(const at::Tensor& sparse, const std::vector<at::Tensor>& members) {
  const c10::Device device = members.back().device();
  const bool on_cpu = device.is_cpu();
  at::Tensor made;
  if (sparse.layout() == at::kSparse) {
    const c10::DispatchKeySet keys(on_cpu ? c10::DispatchKey::SparseCPU : c10::DispatchKey::SparsePrivateUse1);
    made = at::detail::make_tensor<at::SparseTensorImpl>(keys, sparse.dtype());
  } else {
    const c10::DispatchKeySet keys(on_cpu ? c10::DispatchKey::SparseCsrCPU : c10::DispatchKey::SparseCsrPrivateUse1);
    made = at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, device, sparse.layout(), sparse.dtype());
  }
  become(made, sparse, members);
  return made;
}

void become(const at::Tensor& sparse, const at::Tensor& other, const std::vector<at::Tensor>& members) {
  if (sparse.layout() != at::kSparse) {
    compressed(sparse)->set_member_tensors(members[0], members[1], members[2], other.sizes());
    return;
  }
  coo(sparse)->raw_resize_(coo(other)->sparse_dim(), coo(other)->dense_dim(), other.sizes());
  coo(sparse)->set_indices_and_values_unsafe(members[0], members[1]);
  coo(sparse)->set_coalesced(coo(other)->coalesced());
}

}  // namespace hetero::ops
