// The operators that every device must have: factories, views, copies, reading a scalar, and
// changing a tensor's storage.
//
// Factories and views make tensors and record nothing. A copy between two hetero tensors is
// recorded; one from the host takes the bytes at once, since the host tensor may change right
// after; one to the host is a sync point.

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_strided_cpu_dispatch.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "ops/convolution/images.h"
#include "ops/dispatch/basic.h"
#include "ops/dispatch/catch_all.h"
#include "ops/dispatch/typed.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/recorder.h"
#include "ops/run/straight.h"
#include "ops/run/sync.h"

namespace hetero::ops {
namespace {

void check_options(std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_fork();
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided, "hetero: tensors of layout ",
                              layout.value_or(at::kStrided), " are not held by the device; make them on the CPU");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(!device.has_value() || device->index() <= 0, "hetero: there is one device, hetero:0, not ",
              device.has_value() ? device->str() : "");
}

at::ScalarType storable_dtype(std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = dtype.has_value() ? *dtype : c10::typeMetaToScalarType(c10::get_default_dtype());
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isQIntType(type),
                              "hetero: quantized dtypes are not held by the device; "
                              "quantize on the CPU");
  return type;
}

// torch.utils.deterministic: memory that nobody wrote has values all the same.
bool fills_memory() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

at::Tensor filled_if_asked(at::Tensor tensor) {
  if (fills_memory()) [[unlikely]]
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

at::Tensor empty(at::SymIntArrayRef symbolic, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  check_options(layout, device, pin_memory);
  const at::ScalarType type = storable_dtype(dtype);
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  at::detail::check_size_nonnegative(sizes);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type));
  auto impl = c10::make_intrusive<HeteroTensorImpl>(
      make_storage(bytes), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(type));
  if (sizes.size() != 1 || sizes[0] != 0) impl->set_sizes_contiguous(sizes);
  if (format.has_value() && *format != at::MemoryFormat::Contiguous) impl->empty_tensor_restride(*format);
  return filled_if_asked(at::Tensor(std::move(impl)));
}

at::Tensor empty_strided(at::SymIntArrayRef sizes, at::SymIntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, device, pin_memory);
  at::detail::check_size_nonnegative(C10_AS_INTARRAYREF_SLOW(sizes));
  return filled_if_asked(
      make_strided(storable_dtype(dtype), C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides)));
}

at::Tensor counted(at::Tensor view) {
  count(counters().views);
  return view;
}

at::Tensor as_strided(const at::Tensor& self, at::SymIntArrayRef sizes, at::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  const auto integer =
      offset.has_value() ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt;
  return counted(at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                                   C10_AS_INTARRAYREF_SLOW(strides), integer));
}

at::Tensor view(const at::Tensor& self, at::SymIntArrayRef sizes) {
  return counted(at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes)));
}

at::Tensor reshape_alias(const at::Tensor& self, at::SymIntArrayRef sizes, at::SymIntArrayRef strides) {
  return counted(at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides)));
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return counted(at::native::unfold(self, dimension, size, step));
}

at::Tensor view_as_real(const at::Tensor& self) { return counted(at::native::view_as_real(self)); }
at::Tensor view_as_complex(const at::Tensor& self) { return counted(at::native::view_as_complex(self)); }

// Takes the bytes of a host tensor into `self` now.
void copy_from_host(at::Tensor& self, const at::Tensor& source) {
  at::Tensor bytes = at::cpu::empty_strided(self.sizes(), self.strides(), self.options().device(at::kCPU));
  const bool conjugate = self.is_conj();
  if (conjugate) bytes.unsafeGetTensorImpl()->_set_conj(true);
  if (self.is_neg()) bytes.unsafeGetTensorImpl()->_set_neg(true);
  bytes.copy_(source);
  HeteroStorage* storage = storage_of(self);
  const size_t size = bytes.storage().nbytes();
  // What was born in a capture is made anew in each run, which may write it.
  if (!captures_here() && self.storage_offset() == 0 && size == storage->nbytes() &&
      self.is_non_overlapping_and_dense() && is_fresh(storage)) {
    c10::Storage taken = bytes.storage();
    bytes.reset();
    install_bytes(storage, adopt_cpu_storage(std::move(taken)));
    return;
  }
  at::Tensor staged = make_strided(self.scalar_type(), self.sizes(), self.strides());
  if (conjugate) staged.unsafeGetTensorImpl()->_set_conj(true);
  if (self.is_neg()) staged.unsafeGetTensorImpl()->_set_neg(true);
  c10::Storage taken = bytes.storage();
  bytes.reset();
  install_bytes(storage_of(staged), adopt_cpu_storage(std::move(taken)));
  TypedRecorder<at::_ops::copy_>::call(self, staged, false);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  check_fork();
  if (self.is_same(source)) return self;
  if (!is_hetero(self)) {
    self.copy_(host_alias(source, SyncReason::kCopyToDevice, false), non_blocking);
    return self;
  }
  if (source.layout() != at::kStrided || !at::is_expandable_to(source.sizes(), self.sizes())) {
    // The CPU kernel says what is wrong.
    torch::jit::Stack stack = {self, source, non_blocking};
    run_straight(op_info(at::_ops::copy_::name, at::_ops::copy_::overload_name), &stack, SyncReason::kNotRecordable);
    return self;
  }
  if (self.numel() == 0) return self;
  if (is_hetero(source) || (source.device().is_cpu() && source.dim() == 0)) {
    return TypedRecorder<at::_ops::copy_>::call(self, source, non_blocking);
  }
  copy_from_host(self, source.device().is_cpu() ? source : source.to(at::kCPU));
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  at::Tensor target = destination;
  target.copy_(self, non_blocking);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  at::Tensor target = destination;
  target.resize_(self.sizes());
  target.copy_(self);
  return target;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::Tensor alias = host_alias(self, SyncReason::kReadScalar, false);
  return at::_local_scalar_dense(alias);
}

const at::Tensor& resize_(const at::Tensor& self, at::SymIntArrayRef symbolic, std::optional<at::MemoryFormat> format) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(symbolic);
  at::detail::check_size_nonnegative(sizes);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  std::optional<size_t> old_bytes;  // of a storage that grew
  if (self.sizes() != sizes) {
    const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, self.element_size(),
                                                                    static_cast<size_t>(self.storage_offset()));
    HeteroStorage* storage = storage_of(self);
    if (bytes > storage->nbytes()) {
      TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
      old_bytes = storage->nbytes();
      resize_storage(storage, bytes);
    }
    impl->set_sizes_contiguous(sizes);
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  if (old_bytes.has_value() && fills_memory()) [[unlikely]]
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(*old_bytes));
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, c10::SymInt offset, at::SymIntArrayRef sizes,
                               at::SymIntArrayRef strides) {
  TORCH_CHECK(source.device_type() == kHetero, "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  const at::IntArrayRef size = C10_AS_INTARRAYREF_SLOW(sizes);
  const at::IntArrayRef given = C10_AS_INTARRAYREF_SLOW(strides);
  const int64_t start = offset.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(start >= 0, "Tensor: invalid storage offset ", start);
  TORCH_CHECK(given.empty() || given.size() == size.size(), "unequal size length (", size.size(),
              ") and stride length (", given.size(), ")");
  const auto computed = c10::contiguous_strides(size);
  const at::IntArrayRef stride = given.empty() ? at::IntArrayRef(computed) : given;
  const size_t bytes = storage_bytes_for(size, stride, start, self.element_size());
  auto* storage = static_cast<HeteroStorage*>(source.unsafeGetStorageImpl());
  if (bytes > storage->nbytes()) {
    TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
    resize_storage(storage, bytes);
  }
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, stride, start);
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sym_sizes(), source.sym_strides());
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage_offset(self, std::move(source), 0, {c10::SymInt(count)}, {});
}

at::Tensor& set_nothing(at::Tensor& self) { return set_storage_offset(self, make_storage(0), 0, {c10::SymInt(0)}, {}); }

void record_stream(at::Tensor&, at::Stream) {}

// Module.to keeps its Parameters where old and new tensor may share a TensorImpl: as for CUDA, so
// for us.
bool compatible_shallow_copy(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.key_set().has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) &&
           tensor.key_set().has_any(c10::DispatchKeySet(
               {c10::BackendComponent::CPUBit, c10::BackendComponent::CUDABit, c10::BackendComponent::PrivateUse1Bit}));
  };
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set()) || (dense(self) && dense(from));
}

// Whether a batch with this mask may become a nested tensor. The device holds none, so what asks,
// torch.nn.TransformerEncoder, goes on with the padding.
bool may_be_nested(const at::Tensor&, const at::Tensor&) { return false; }

}  // namespace

void register_basic(torch::Library& library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(view));
  library.impl("_reshape_alias", TORCH_FN(reshape_alias));
  library.impl("unfold", TORCH_FN(unfold));
  library.impl("view_as_real", TORCH_FN(view_as_real));
  library.impl("view_as_complex", TORCH_FN(view_as_complex));
  enter_typed_row<at::_ops::copy_>(RowCode<>{}.with_own<&run_copy>());
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_.source_Storage", TORCH_FN(set_storage));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(may_be_nested));
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(compatible_shallow_copy));
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(compatible_shallow_copy));
}

}  // namespace hetero::ops
