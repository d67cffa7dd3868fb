#include "ops/kernels/kernel.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_strided_cpu_dispatch.h>
#include <c10/core/CPUAllocator.h>

#include <memory>
#include <vector>

#include "backend/registry/registry.h"
#include "ops/memory/storage_memory.h"
#include "ops/settings/parallel.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {
namespace {

c10::intrusive_ptr<c10::StorageImpl> empty_storage(c10::Device device) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, device),
                                               c10::GetAllocator(device.type()), true);
}

at::Tensor alias_over(c10::intrusive_ptr<c10::StorageImpl> storage, c10::Device device, at::ScalarType dtype) {
  const c10::DispatchKey key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key),
                                                  c10::scalarTypeToTypeMeta(dtype));
}

struct AliasSlot {
  at::Tensor tensor;
  c10::StorageImpl* storage = nullptr;
  c10::Device device = c10::kCPU;
  graph::WindowId window = graph::kNoWindow;
  uint64_t table = 0;  // serial number of the window's
  uint8_t bits = 0;

  void renew(at::ScalarType dtype, c10::Device on) {
    auto fresh = empty_storage(on);
    storage = fresh.get();
    tensor = alias_over(std::move(fresh), on, dtype);
    device = on;
    window = graph::kNoWindow;
    bits = 0;
  }

  // The same tensor, of another type. REQUIRES: nobody else has it, and its storage is still the
  // slot's.
  void retype(at::ScalarType dtype) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    impl->set_storage_and_dtype(impl->unsafe_storage(), c10::scalarTypeToTypeMeta(dtype));
    window = graph::kNoWindow;
  }
};

// Slots are pointers, so that references to tensors survive growth.
struct AliasStack {
  std::vector<std::unique_ptr<AliasSlot>> slots;
  size_t top = 0;
};

AliasStack& alias_stack() {
  // Leaked with its thread: kernels may run while thread_locals die.
  static thread_local AliasStack* stack = new AliasStack;
  return *stack;
}

c10::DispatchKeySet isolated_exclusions() {
  static const c10::DispatchKeySet keys =
      c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  return keys;
}

bool laid_out_as(const at::Tensor& result, const graph::Window& window) {
  return window.equals(static_cast<graph::DType>(result.scalar_type()), {result.sizes().data(), result.sizes().size()},
                       {result.strides().data(), result.strides().size()}, result.storage_offset());
}

}  // namespace

Isolated::Isolated(Threads threads)
    : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), isolated_exclusions()), threads_(threads) {
  follow_thread_count();
  if (threads_ == Threads::kOpenMp) begin_openmp();
}

Isolated::~Isolated() {
  if (threads_ == Threads::kOpenMp) end_openmp();
}

KernelTensors::KernelTensors(const graph::Invocation& invocation)
    : invocation_(invocation),
      device_(invocation.by_device ? kernel_device() : c10::Device(c10::kCPU)),
      base_(alias_stack().top) {
  AliasStack& stack = alias_stack();
  stack.top += invocation.node->operand_count;
  while (stack.slots.size() < stack.top) stack.slots.push_back(std::make_unique<AliasSlot>());
}

KernelTensors::~KernelTensors() {
  AliasStack& stack = alias_stack();
  for (size_t i = base_; i < stack.top; ++i) {
    AliasSlot& slot = *stack.slots[i];
    if (slot.storage == nullptr) continue;
    if (slot.tensor.use_count() != 1 || c10::raw::intrusive_ptr::use_count(slot.storage) != 1) {
      slot = AliasSlot();
    }
  }
  stack.top = base_;
}

const at::Tensor& KernelTensors::operand(int i) {
  AliasSlot& slot = *alias_stack().slots[base_ + i];
  const graph::Operand& operand = invocation_.operands[i];
  const graph::Window& window = (*invocation_.windows)[operand.window];
  const auto dtype = static_cast<at::ScalarType>(window.dtype);
  const uint64_t table = invocation_.windows->serial();
  if (slot.storage == nullptr || slot.bits != operand.bits || slot.device != device_ ||
      // A kernel may have changed the alias (resized an output) or its storage.
      slot.tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() != slot.storage) {
    slot.renew(dtype, device_);
  } else if (slot.tensor.scalar_type() != dtype) {
    slot.retype(dtype);
  }
  slot.storage->set_data_ptr_noswap(c10::DataPtr(invocation_.data[i], device_));
  c10::TensorImpl* impl = slot.tensor.unsafeGetTensorImpl();
  if (slot.window != operand.window || slot.table != table || impl->numel() != window.numel) {
    slot.storage->set_nbytes(static_cast<size_t>(window.last_byte));
    const auto rank = static_cast<size_t>(window.rank);
    // linalg_vector_norm reads sizes()[0] of a number too, which is then what the tensor had
    // before. A new tensor has a size of 0 there.
    if (rank == 0) impl->set_sizes_and_strides(c10::IntArrayRef{0}, c10::IntArrayRef{1});
    impl->set_sizes_and_strides(c10::IntArrayRef(window.dims, rank), c10::IntArrayRef(window.dims + rank, rank),
                                window.offset);
    slot.window = operand.window;
    slot.table = table;
  }
  if (operand.bits != slot.bits) {
    if ((operand.bits & graph::kConjugate) != 0) impl->_set_conj(true);
    if ((operand.bits & graph::kNegative) != 0) impl->_set_neg(true);
    if ((operand.bits & graph::kWrappedNumber) != 0) impl->set_wrapped_number(true);
    slot.bits = operand.bits;
  }
  return slot.tensor;
}

const at::Tensor& KernelTensors::argument(int i) {
  for (int j = 0; j < i && i < first_output(); ++j) {
    const graph::Operand &earlier = invocation_.operands[j], &operand = invocation_.operands[i];
    const bool is_one =
        invocation_.data[j] == invocation_.data[i] && earlier.window == operand.window && earlier.bits == operand.bits;
    if (is_one) return this->operand(j);
  }
  return this->operand(i);
}

c10::Device kernel_device() {
  const backend::Device* const accelerator = backend::accelerator();
  return accelerator != nullptr && backend::is_gpu(accelerator->name()) ? c10::Device(c10::kCUDA, 0)
                                                                        : c10::Device(c10::kCPU);
}

at::Tensor bytes_at(void* data, int64_t bytes, c10::Device device) {
  auto storage = empty_storage(device);
  storage->set_data_ptr_noswap(c10::DataPtr(data, device));
  storage->set_nbytes(static_cast<size_t>(bytes));
  at::Tensor tensor = alias_over(std::move(storage), device, c10::kByte);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(bytes);
  return tensor;
}

void KernelTensors::deliver(int i, at::Tensor result) {
  const graph::Window& window = (*invocation_.windows)[invocation_.operands[i].window];
  const auto dtype = static_cast<at::ScalarType>(window.dtype);
  const auto rank = static_cast<size_t>(window.rank);
  const c10::IntArrayRef sizes(window.dims, rank);
  const c10::IntArrayRef strides(window.dims + rank, rank);
  TORCH_CHECK(result.defined() && result.sizes() == sizes && result.scalar_type() == dtype,
              "hetero: the Meta kernel of ", invocation_.traits->name, " predicts an output of ", dtype, sizes,
              " but its ", device_.is_cpu() ? "CPU" : "CUDA", " kernel made ",
              result.defined() ? c10::str(result.scalar_type(), result.sizes()) : "nothing",
              "; correct the Meta (fake) kernel of this operator");
  if (result.is_conj()) result = result.resolve_conj();
  if (result.is_neg()) result = result.resolve_neg();
  if (has_memory(i)) {
    const at::Tensor& place = operand(i);
    if (result.const_data_ptr() != place.const_data_ptr() || result.strides() != strides) {
      place.copy_(result);
    }
    return;
  }
  c10::StorageImpl* storage = result.storage().unsafeGetStorageImpl();
  // Only memory that nobody else refers to, and that the storage really owns, may be taken over.
  const bool exclusive = result.use_count() == 1 && c10::raw::intrusive_ptr::use_count(storage) == 1 &&
                         storage->data_ptr().get_context() != nullptr;
  if (!(exclusive && laid_out_as(result, window))) {
    at::Tensor copy = at::cpu::empty_strided(sizes, strides, at::TensorOptions(dtype));
    copy.copy_(result);
    result = std::move(copy);
  }
  c10::Storage owned = result.storage();
  result.reset();
  invocation_.brought[i] = adopt_cpu_storage(std::move(owned));
}

}  // namespace hetero::ops
