// Sparse tensors of the device: PyTorch's own sparse tensors, whose indices and values are hetero
// tensors.
//
// COO tensors have indices and values. Compressed ones (CSR, CSC, BSR, BSC) have compressed
// indices, plain indices and values. These are the tensor's members. Nothing here reads or writes
// bytes.
//
// Thread safety: as PyTorch's tensors.

#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace hetero::ops {

inline bool is_compressed_layout(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr || layout == at::kSparseBsc;
}
inline bool is_sparse(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.layout() == at::kSparse || is_compressed_layout(tensor.layout()));
}

// REQUIRES, of both: a sparse layout.
std::vector<at::Tensor> members_of(const at::Tensor& sparse);
// A tensor like `sparse` in all but its members, on the device where they are.
at::Tensor with_members(const at::Tensor& sparse, const std::vector<at::Tensor>& members);
// Makes `sparse` look like `other`, with these members.
void become(const at::Tensor& sparse, const at::Tensor& other, const std::vector<at::Tensor>& members);

}  // namespace hetero::ops
