#include "ops/program/graph_tensors.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "graph/ir/window.h"
#include "ops/memory/storage_memory.h"
#include "ops/run/sync.h"

namespace hetero::ops {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) tensors.push_back(value.toTensor());
  return tensors;
}

at::Tensor view_like(const c10::Storage& storage, const at::Tensor& tensor) {
  at::Tensor view = another_look(tensor);
  view.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  return view;
}

}  // namespace

at::Tensor another_look(const at::Tensor& tensor) { return tensor.variable_data(); }

Autocast::Autocast(at::ScalarType dtype)
    : casts_(dtype != at::kFloat),
      enabled_before_(at::autocast::is_autocast_enabled(kHetero)),
      dtype_before_(at::autocast::get_autocast_dtype(kHetero)) {
  if (!casts_) return;
  at::autocast::set_autocast_dtype(kHetero, dtype);
  at::autocast::set_autocast_enabled(kHetero, true);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastPrivateUse1, false);
}

Autocast::~Autocast() {
  if (!casts_) return;
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastPrivateUse1, true);
  at::autocast::set_autocast_enabled(kHetero, enabled_before_);
  at::autocast::set_autocast_dtype(kHetero, dtype_before_);
}

std::optional<Status> find_error(const SchemaCall& call, const std::vector<at::Tensor>& operands) {
  const Status status = caught([&] {
    std::vector<at::Tensor> zeros;
    for (const at::Tensor& operand : operands) {
      const at::Tensor empty = at::detail::empty_strided_cpu(operand.sizes(), operand.strides(), operand.scalar_type());
      zeros.push_back(empty.zero_());
    }
    (void)call(zeros, at::kCPU);
  });
  return status.ok() ? std::nullopt : std::optional<Status>(status);
}

std::vector<at::Tensor> infer(const SchemaCall& call, const std::vector<at::Tensor>& operands) {
  CompiledProgram program({});
  const std::vector<c10::IValue> arguments(operands.begin(), operands.end());
  const std::vector<at::Tensor> stand_ins = tensors_of(program.begin_capture(arguments));
  std::vector<at::Tensor> results;
  {
    const CancelledCapture cancelled{program};
    results = call(stand_ins, kGraphDevice);
  }
  for (at::Tensor& result : results) {
    if (!result.defined()) continue;
    TORCH_CHECK(is_hetero(result), "hetero: ", call.name(), " gives a tensor on ", result.device());
    for (size_t i = 0; i < stand_ins.size(); ++i) {
      if (!result.storage().is_alias_of(stand_ins[i].storage())) continue;
      result = view_like(operands[i].storage(), result);
      break;
    }
  }
  return results;
}

at::Tensor without_bytes(graph::DType dtype, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  graph::fill_row_major(sizes, strides.data());
  return make_strided(static_cast<at::ScalarType>(dtype), sizes, strides);
}

at::Tensor copied(const TensorView& view) {
  const at::Tensor host = at::detail::empty_cpu(view.sizes, static_cast<at::ScalarType>(view.dtype), {}, {}, {}, {});
  graph::WindowTable windows;
  graph::copy_in(view, windows[windows.intern_contiguous(view.dtype, view.sizes)], host.mutable_data_ptr());
  return host.to(kGraphDevice);
}

at::Tensor borrowed(const TensorView& view, std::shared_ptr<const void> owner) {
  const at::Tensor look = without_bytes(view.dtype, view.sizes);
  const size_t bytes = look.storage().nbytes();
  c10::DataPtr data(
      view.data, new std::shared_ptr<const void>(std::move(owner)),
      [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); }, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, false);
  install_bytes(storage_of(look), adopt_cpu_storage(std::move(storage)));
  return look;
}

bool can_borrow(const TensorView& view) {
  std::vector<int64_t> strides(view.sizes.size());
  graph::fill_row_major(view.sizes, strides.data());
  const bool row_major = view.strides.empty() || view.strides == strides;
  return row_major && reinterpret_cast<uintptr_t>(view.data) % graph::dtype_bytes(view.dtype) == 0;
}

Status check_sizes(const std::string& name, graph::DType dtype, const std::vector<int64_t>& sizes) {
  if (name.empty()) return usage("inputs, constants and outputs have names");
  if (dtype < 0 || graph::dtype_bytes(dtype) == 0) return usage("'" + name + "' has a dtype that there is not");
  const bool negative = std::ranges::any_of(sizes, [](int64_t size) { return size < 0; });
  return negative ? usage("'" + name + "' has a negative size") : Status();
}

TensorView look_of(const at::Tensor& tensor) {
  return {.data = nullptr,
          .dtype = static_cast<graph::DType>(tensor.scalar_type()),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec()};
}

}  // namespace hetero::ops
