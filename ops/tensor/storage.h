// HeteroStorage and HeteroTensorImpl: what a hetero tensor is made of.
//
// A hetero tensor is an ordinary strided TensorImpl over a HeteroStorage. The storage is an
// identity: its data pointer is a unique address in a reserved range that cannot be dereferenced
// (backend/memory/address_space.h). Its Binding says where its bytes are, if anywhere. The recorder
// knows whether pending nodes will change them.
//
//   fresh:    no bytes, nothing pending   (torch.empty)
//   pending:  the trace has nodes that write it
//   settled:  binding.valid_on names the devices that hold its bytes
//
// Both classes come from free lists. The tensor remembers the id of its window, a hint that is
// checked on use.
//
// Thread safety: `buffer`, `epoch` and what flights need belong to the recorder's lock, `binding`
// to the executor's lock (see recorder.h). Destruction may happen on any thread.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <typeinfo>

#include "backend/memory/address_space.h"
#include "backend/memory/pool.h"
#include "graph/ir/binding.h"
#include "graph/ir/window.h"

namespace hetero::ops {

// What in_place.h knows of a storage.
enum class Growth : uint8_t {
  kNone,
  kGrown,     // a concatenation made it that has added little to another
  kNotApart,  // the same, but its bytes are wanted in one piece
};

class HeteroStorage final : public c10::StorageImpl {
 public:
  HeteroStorage(size_t bytes, bool resizable);  // for make_storage
  ~HeteroStorage() override;

  static void* operator new(size_t bytes);
  static void operator delete(void* memory);

  void release_resources() override;

  // Changes nbytes() and the identity address. REQUIRES: nothing pending; the caller takes care of
  // the bytes.
  void change_size(size_t bytes);

  // Position in the recorder's trace; meaningful while `epoch` is the trace's epoch.
  uint32_t buffer = 0;
  uint32_t epoch = 0;
  graph::Binding binding;

  // Of flights (overlap.h), which run while others record; the recorder's lock.
  uint32_t flights = 0;        // owners of the storage that are flights
  uint8_t valid_later = 0;     // binding.valid_on when the flight has landed that is `in_flight`
  uint64_t in_flight = 0;      // the last flight that touches it
  graph::Layout layout_later;  // of binding.layout, the same

  Growth growth = Growth::kNone;  // the recorder's lock
  // Of storage_memory.h; the executor's lock:
  bool tracked = false;  // it is in the set
  // Called when a tracked storage dies, on any thread. Installed by storage_memory.h, which sets
  // `tracked`.
  static void (*on_tracked_end)(HeteroStorage* storage);
  bool arrived = false;    // it is among the arrivals (arrivals.h)
  uint64_t last_used = 0;  // the last run that touched it
  // How many CPU storages look at the CPU's block, so that it must stay. Those that left the
  // dispatcher are among binding.sharers, too.
  std::atomic<int32_t> host_readers{0};

 private:
  void release_address();
  size_t reserved_bytes_ = 0;
};

class HeteroTensorImpl final : public c10::TensorImpl {
 public:
  HeteroTensorImpl(c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype)
      : TensorImpl(std::move(storage), keys, dtype) {}
  // With these keys and no others.
  HeteroTensorImpl(ImplType view, c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype)
      : TensorImpl(view, std::move(storage), keys, dtype) {}

  static void* operator new(size_t bytes);
  static void operator delete(void* memory);
  static void* operator new(size_t, void* place) { return place; }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override;

  // Whether it sees its storage through this window.
  bool looks_like(const graph::Window& other) const {
    const size_t rank = sizes_and_strides_.size();
    return !has_symbolic_sizes_strides_ &&
           other.equals(static_cast<graph::DType>(data_type_.toScalarType()), {sizes_and_strides_.sizes_data(), rank},
                        {sizes_and_strides_.strides_data(), rank}, storage_offset_);
  }
  // From now on it sees its storage through this window. REQUIRES: the tensor is known to the
  // caller only; the offset is 0.
  void look_through(const graph::Window& window, graph::WindowId id);

  // The window this tensor had when it was made; compare before use.
  mutable graph::WindowId window = graph::kNoWindow;
};

inline constexpr c10::DeviceType kHetero = c10::DeviceType::PrivateUse1;

inline bool is_hetero(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has_backend(c10::BackendComponent::PrivateUse1Bit);
}

// REQUIRES: is_hetero(tensor), and the tensor is strided.
inline HeteroStorage* storage_of(const at::TensorBase& tensor) {
  return static_cast<HeteroStorage*>(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// The tensor's HeteroTensorImpl, or null where autograd or a shallow copy made a plain one.
inline const HeteroTensorImpl* hetero_impl(const c10::TensorImpl& impl) {
  // The class is final and lives in one library, so equal type_info means equal address.
  return &typeid(impl) == &typeid(HeteroTensorImpl) ? static_cast<const HeteroTensorImpl*>(&impl) : nullptr;
}

// A new storage. Takes no memory for the bytes.
c10::Storage make_storage(size_t bytes);
// A new tensor over a new storage.
at::Tensor make_tensor(const graph::Window& window, graph::WindowId id, size_t storage_bytes);
// A new tensor over `storage`.
at::Tensor make_view(c10::Storage storage, at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     int64_t offset);
at::Tensor make_strided(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);

// Bytes a storage needs to hold the window.
size_t storage_bytes_for(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset, size_t item_bytes);

// The c10 allocator of the device: what torch.UntypedStorage(n, device="hetero") and empty_cache
// talk to.
c10::Allocator* hetero_allocator();
// `before_first` is called before the first hetero tensor is made.
void register_storage(void (*before_first)());

// True once a hetero tensor was made in this process.
bool device_was_used();

}  // namespace hetero::ops
