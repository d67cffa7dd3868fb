// Operators with sparse tensors. What looks at the indices or the values alone, or makes a sparse
// tensor of them, runs nothing: those are hetero tensors, and recorded as others are. All else runs
// at once, on the CPU (straight.h).
//
// Nested and quantized tensors are not held; a sentence says what to use instead.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "ops/dispatch/registration.h"
#include "ops/record/op_info.h"
#include "ops/run/straight.h"
#include "ops/tensor/sparse.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {
namespace {

void run_sparse(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  run_straight(op_info(handle), stack, SyncReason::kNotRecordable);
}

at::Tensor moved(const at::Tensor& sparse, c10::Device device) {
  std::vector<at::Tensor> members = members_of(sparse);
  for (at::Tensor& member : members) member = member.to(device);
  return with_members(sparse, members);
}

// Between devices, too.
at::Tensor& copy_sparse(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (!is_hetero(self)) return self.copy_(moved(source, c10::kCPU), non_blocking);
  torch::jit::Stack stack = {self, source, non_blocking};
  if (!is_hetero(source)) {
    if (is_sparse(source)) {
      stack[1] = moved(source, self.device());
    } else {
      stack[1] = source.to(self.device());
    }
  }
  run_straight(op_info(at::_ops::copy_::name, at::_ops::copy_::overload_name), &stack, SyncReason::kNotRecordable);
  return self;
}

// Whatever has a kernel for sparse tensors of the CPU. Default kernels would compute with sparse
// tensors as with others.
void register_sparse(torch::Library& library, c10::DispatchKey cpu, c10::DispatchKey ours) {
  for (const c10::OperatorHandle& handle : aten_operators()) {
    if (!handle.hasKernelForDispatchKey(cpu) || handle.hasKernelForDispatchKey(ours)) continue;
    library.impl(c10::toString(handle.operator_name()).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&run_sparse>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  namespace native = at::native;
  library.impl("_indices", TORCH_FN(native::_indices_sparse));
  library.impl("_values", TORCH_FN(native::_values_sparse));
  library.impl("indices", TORCH_FN(native::indices_sparse));
  library.impl("values", TORCH_FN(native::values_sparse));
  library.impl("_nnz", TORCH_FN(native::_nnz_sparse));
  library.impl("sparse_dim", TORCH_FN(native::sparse_dim_sparse));
  library.impl("dense_dim", TORCH_FN(native::dense_dim_sparse));
  library.impl("_dimI", TORCH_FN(native::sparse_dim_sparse));
  library.impl("_dimV", TORCH_FN(native::dense_dim_sparse));
  library.impl("is_coalesced", TORCH_FN(native::is_coalesced_sparse));
  library.impl("_coalesced_", TORCH_FN(native::_coalesced_sparse_));
  library.impl("_sparse_coo_tensor_with_dims", TORCH_FN(native::new_with_dims_sparse));
  library.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(native::new_with_dims_and_tensor_sparse_symint));
  library.impl("copy_", TORCH_FN(copy_sparse));
  register_sparse(library, c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1);
}
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) {
  namespace native = at::native;
  library.impl("crow_indices", TORCH_FN(native::crow_indices_sparse_csr));
  library.impl("col_indices", TORCH_FN(native::col_indices_sparse_csr));
  library.impl("ccol_indices", TORCH_FN(native::ccol_indices_sparse_csr));
  library.impl("row_indices", TORCH_FN(native::row_indices_sparse_csr));
  library.impl("values", TORCH_FN(native::values_sparse_csr));
  library.impl("_nnz", TORCH_FN(native::_nnz_sparse_csr));
  library.impl("sparse_dim", TORCH_FN(native::sparse_dim_sparse_csr));
  library.impl("dense_dim", TORCH_FN(native::dense_dim_sparse_csr));
  library.impl("copy_", TORCH_FN(copy_sparse));
  register_sparse(library, c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::SparseCsrPrivateUse1);
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_sparse>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_sparse>());
}

namespace {

[[noreturn]] void refuse_quantized(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "hetero: ", handle.operator_name().name,
                              " needs a quantized tensor, which the hetero device does not hold; use torchao, or "
                              "keep it on the CPU");
}
[[noreturn]] void refuse_nested(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "hetero: ", handle.operator_name().name,
                              " needs a nested tensor of strided layout, which the hetero device does not hold; use "
                              "layout=torch.jagged, or .to_padded_tensor()");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

}  // namespace hetero::ops
