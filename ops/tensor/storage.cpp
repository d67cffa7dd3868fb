#include "ops/tensor/storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <atomic>

#include "ops/settings/memory_stats.h"

namespace hetero::ops {
namespace {

namespace address_space = backend::address_space;

std::atomic<bool> was_used{false};
void (*before_first_use)() = nullptr;

c10::Device hetero_device() { return c10::Device(kHetero, 0); }

[[gnu::cold]] void note_first_use() {
  if (before_first_use != nullptr) before_first_use();
  was_used.store(true, std::memory_order_relaxed);
}

[[noreturn, gnu::cold]] void raise_no_address(size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "hetero: no address range of ", bytes,
                   " bytes is left for a storage; free some tensors");
}

[[gnu::always_inline]] inline c10::DataPtr identity_pointer(size_t bytes) {
  if (!was_used.load(std::memory_order_relaxed)) [[unlikely]]
    note_first_use();
  void* address = address_space::reserve(bytes);
  if (address == nullptr) [[unlikely]]
    raise_no_address(bytes);
  return c10::DataPtr(address, hetero_device());
}

}  // namespace

// Inlined, so that the thread's block is looked up once for the object and for its address.
[[gnu::always_inline]] inline HeteroStorage::HeteroStorage(size_t bytes, bool resizable)
    : StorageImpl(use_byte_size_t(), static_cast<int64_t>(bytes), identity_pointer(bytes), hetero_allocator(),
                  resizable),
      reserved_bytes_(bytes) {}

HeteroStorage::~HeteroStorage() {
  // Not tracked any more: what tracks it holds it weakly, so it has gone through
  // release_resources().
  release_address();
}

void (*HeteroStorage::on_tracked_end)(HeteroStorage* storage) = nullptr;

bool device_was_used() { return was_used.load(std::memory_order_relaxed); }

void* HeteroStorage::operator new(size_t) { return backend::FreeList<sizeof(HeteroStorage)>::allocate(); }

void HeteroStorage::operator delete(void* memory) { backend::FreeList<sizeof(HeteroStorage)>::deallocate(memory); }

[[gnu::always_inline]] inline void HeteroStorage::release_address() {
  void* address = _mutable_data_ptr_no_checks().get();
  if (address == nullptr) return;
  address_space::release(address, reserved_bytes_);
  _mutable_data_ptr_no_checks().clear();
}

void HeteroStorage::release_resources() {
  // Somebody may still hold a weak reference (the trace does), but nobody will see the bytes again.
  if (tracked) on_tracked_end(this);
  binding.changed();
  binding.spilled.reset();
  binding.blocks.reset_all();
  binding.valid_on = 0;
  binding.layout = graph::Layout();
  if (!binding.error.ok()) binding.error = Status();
  release_address();
}

void HeteroStorage::change_size(size_t bytes) {
  if (bytes == nbytes()) return;
  c10::DataPtr pointer = identity_pointer(bytes);
  release_address();
  set_data_ptr_noswap(std::move(pointer));
  reserved_bytes_ = bytes;
  set_nbytes(bytes);
}

void* HeteroTensorImpl::operator new(size_t) { return backend::FreeList<sizeof(HeteroTensorImpl)>::allocate(); }

void HeteroTensorImpl::operator delete(void* memory) {
  backend::FreeList<sizeof(HeteroTensorImpl)>::deallocate(memory);
}

c10::intrusive_ptr<c10::TensorImpl> HeteroTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                              bool allow_change) const {
  return shallow_copy_and_detach(c10::VariableVersion(version), allow_change);
}

c10::intrusive_ptr<c10::TensorImpl> HeteroTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                              bool allow_change) const {
  // Python's dispatch (modes, subclasses) and tensors that became something else follow the base
  // class.
  if (!key_set_.has_backend(c10::BackendComponent::PrivateUse1Bit) || key_set_.has(c10::DispatchKey::Python) ||
      c10::impl::TorchDispatchModeTLS::any_modes_set(false)) {
    return TensorImpl::shallow_copy_and_detach(std::move(version), allow_change);
  }
  auto copy = c10::make_intrusive<HeteroTensorImpl>(c10::Storage(storage_), key_set_, data_type_);
  copy_tensor_metadata(this, copy.get(), std::move(version), allow_change);
  copy->window = window;
  return copy;
}

[[gnu::always_inline]] inline void HeteroTensorImpl::look_through(const graph::Window& seen, graph::WindowId id) {
  window = id;
  const auto rank = static_cast<size_t>(seen.rank);
  constexpr size_t kChannelsLast2d = 4, kChannelsLast3d = 5;
  if (!seen.contiguous || rank == kChannelsLast2d || rank == kChannelsLast3d) {
    set_sizes_and_strides({seen.dims, rank}, {seen.dims + rank, rank});
    return;
  }
  // The flags of a new tensor say that it is contiguous, and only tensors of those ranks have
  // others.
  if (rank != 1) sizes_and_strides_.resize(rank);
  int64_t* const sizes = sizes_and_strides_.sizes_data();
  int64_t* const strides = sizes_and_strides_.strides_data();
  for (size_t i = 0; i < rank; ++i) {
    sizes[i] = seen.dims[i];
    strides[i] = seen.dims[rank + i];
  }
  numel_ = seen.numel;
}

namespace {

// What c10 makes of the key, in inference mode or not.
c10::DispatchKeySet usual_keys(bool inference) {
  const c10::InferenceMode mode(inference);
  return c10::make_intrusive<HeteroTensorImpl>(make_storage(0), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                               caffe2::TypeMeta::Make<float>())
      ->key_set();
}

}  // namespace

// Inlined into make_tensor, which c10::make_intrusive is or is not.
[[gnu::always_inline]] inline c10::Storage new_storage(size_t bytes) {
  return c10::Storage(c10::intrusive_ptr<HeteroStorage>::unsafe_steal_from_new(new HeteroStorage(bytes, true)));
}

c10::Storage make_storage(size_t bytes) { return new_storage(bytes); }

at::Tensor make_tensor(const graph::Window& window, graph::WindowId id, size_t storage_bytes) {
  const caffe2::TypeMeta dtype = c10::scalarTypeToTypeMeta(static_cast<at::ScalarType>(window.dtype));
  // A constructor that takes the keys as they are; the other one finds them out each time.
  static const c10::DispatchKeySet keys[] = {usual_keys(false), usual_keys(true)};
  auto impl = c10::make_intrusive<HeteroTensorImpl>(c10::TensorImpl::VIEW, new_storage(storage_bytes),
                                                    keys[c10::InferenceMode::is_enabled()], dtype);
  impl->look_through(window, id);
  return at::Tensor(std::move(impl));
}

at::Tensor make_view(c10::Storage storage, at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     int64_t offset) {
  auto impl = c10::make_intrusive<HeteroTensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

at::Tensor make_strided(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const size_t bytes = storage_bytes_for(sizes, strides, 0, c10::elementSize(dtype));
  return make_view(make_storage(bytes), dtype, sizes, strides, 0);
}

size_t storage_bytes_for(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset, size_t item_bytes) {
  // Checks for overflow, as eager does.
  return at::detail::computeStorageNbytes(sizes, strides, item_bytes, offset);
}

namespace {

// Storages take no memory when they are made, so allocate() only reserves an identity. It serves
// c10 code that asks the allocator instead of making a storage.
class HeteroAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t) override { return c10::DataPtr(nullptr, hetero_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "hetero: the bytes of a hetero tensor cannot be copied by pointer; use copy_");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { empty_cache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return device_stats(); }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override { return memory_info(); }
};

c10::intrusive_ptr<c10::StorageImpl> create_storage(c10::StorageImpl::use_byte_size_t, c10::SymInt bytes, c10::DataPtr,
                                                    c10::Allocator*, bool resizable) {
  return c10::make_intrusive<HeteroStorage>(static_cast<size_t>(bytes.guard_int(__FILE__, __LINE__)), resizable);
}

}  // namespace

c10::Allocator* hetero_allocator() {
  static auto* allocator = new HeteroAllocator;
  return allocator;
}

void register_storage(void (*before_first)()) {
  before_first_use = before_first;
  c10::SetAllocator(kHetero, hetero_allocator());
  c10::SetStorageImplCreate(kHetero, &create_storage);
}

}  // namespace hetero::ops
