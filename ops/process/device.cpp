// What makes PrivateUse1 a device: guard, streams, events, hooks, host allocator, profiler marks.
//
// All streams of the device are one program order, so stream and event calls are sync points: after
// `Event.record` everything recorded before has run, and waiting for it is free. That is what lets
// user code written for CUDA streams order with us.

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <atomic>
#include <chrono>

#include "backend/registry/registry.h"
#include "ops/process/device.h"
#include "ops/process/kineto.h"
#include "ops/record/generator.h"
#include "ops/run/sync.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {
namespace {

c10::Device only_device() { return c10::Device(kHetero, 0); }

void check_device(c10::Device device) {
  TORCH_CHECK(device.index() <= 0, "hetero: there is one device, hetero:0, not ", device);
}

c10::StreamId& current_stream() {
  static thread_local c10::StreamId stream = 0;
  return stream;
}

c10::Stream stream_of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, only_device(), id); }

// Where the accelerator simulates time, its clock is the one that counts.
struct RecordedEvent {
  std::chrono::steady_clock::time_point time;
  const backend::Device* clock = nullptr;  // null where time is real
  double virtual_seconds = 0;

  void note() {
    time = std::chrono::steady_clock::now();
    const backend::Device* const accelerator = backend::accelerator();
    clock = accelerator != nullptr && accelerator->has_virtual_clock() ? accelerator : nullptr;
    virtual_seconds = clock == nullptr ? 0 : clock->host_seconds();
  }
  // Of two clocks only the real one has something in common.
  double seconds_since(const RecordedEvent& start) const {
    if (clock != nullptr && clock == start.clock) return virtual_seconds - start.virtual_seconds;
    return std::chrono::duration<double>(time - start.time).count();
  }
};

struct HeteroGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kHetero; }
  c10::Device exchangeDevice(c10::Device device) const override {
    check_device(device);
    return only_device();
  }
  c10::Device getDevice() const override { return only_device(); }
  void setDevice(c10::Device device) const override { check_device(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // What the CPU computes with; quantized dtypes are not held.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    auto& dtypes = capability.capability_data.supported_scalar_types;
    dtypes.has_QInt8 = dtypes.has_QUInt8 = dtypes.has_QInt32 = dtypes.has_QUInt4x2 = dtypes.has_QUInt2x4 = 0;
    return capability;
  }

  c10::Stream getStream(c10::Device) const override { return stream_of(current_stream()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return stream_of(next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current_stream(), stream.id()));
  }
  bool queryStream(const c10::Stream&) const override {
    flush_all(SyncReason::kSynchronize);
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override { flush_all(SyncReason::kSynchronize); }
  void synchronizeDevice(c10::DeviceIndex) const override { flush_all(SyncReason::kSynchronize); }

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    flush_all(SyncReason::kSynchronize);
    if (*event == nullptr) *event = new RecordedEvent;
    static_cast<RecordedEvent*>(*event)->note();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    return 1e3 * static_cast<RecordedEvent*>(end)->seconds_since(*static_cast<RecordedEvent*>(start));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, HeteroGuard);

// Host memory for pin_memory(): ordinary memory that we remember, since nothing here needs page
// locking.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = c10::GetDefaultCPUAllocator()->allocate(bytes);
    void* data = memory.get();
    {
      std::lock_guard lock(mutex_);
      if (data != nullptr) ranges_.insert(data);
    }
    auto* owner = new Owner{this, std::move(memory)};
    return c10::DataPtr(data, owner, &release, c10::Device(c10::kCPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool owns(const void* data) {
    std::lock_guard lock(mutex_);
    return ranges_.count(data) != 0;
  }

 private:
  struct Owner {
    PinnedAllocator* allocator;
    c10::DataPtr memory;
  };
  static void release(void* context) {
    auto* owner = static_cast<Owner*>(context);
    {
      std::lock_guard lock(owner->allocator->mutex_);
      owner->allocator->ranges_.erase(owner->memory.get());
    }
    delete owner;
  }

  std::mutex mutex_;
  std::unordered_set<const void*> ranges_;
};

PinnedAllocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

struct HeteroHooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<HeteroGenerator>(); }
  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(backend::address_space::contains(data), "hetero: the pointer is not that of a hetero tensor");
    return only_device();
  }
  bool isPinnedPtr(const void* data) const override { return pinned_allocator().owns(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex index) const override { check_device(c10::Device(kHetero, index)); }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    check_device(c10::Device(kHetero, index));
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(static_cast<HeteroStorage*>(storage.unsafeGetStorageImpl()), bytes);
  }
};

// The events of torch.autograd.profiler.profile(use_device="hetero"): times of the host's clock,
// for the host makes the calls, records, and waits for what runs.
struct ProfilerEvents final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, torch::profiler::impl::ProfilerVoidEventStub* event,
              int64_t* nanoseconds) const override {
    const auto made = std::make_shared<RecordedEvent>();
    made->note();
    if (device != nullptr) *device = 0;
    if (nanoseconds != nullptr) *nanoseconds = std::chrono::nanoseconds(made->time.time_since_epoch()).count();
    *event = made;
  }
  // Microseconds.
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub* start,
                const torch::profiler::impl::ProfilerVoidEventStub* end) const override {
    const auto* const first = static_cast<const RecordedEvent*>(start->get());
    const auto* const last = static_cast<const RecordedEvent*>(end->get());
    return static_cast<float>(last->seconds_since(*first) * 1e6);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> call) const override { call(0); }
  void synchronize() const override { flush_all(SyncReason::kSynchronize); }
};

// What a saved tensor says of its device beside its bytes: nothing.
void no_metadata(const at::Tensor&, std::unordered_map<std::string, bool>&) {}

}  // namespace

void register_device() {
  torch::jit::TensorBackendMetaRegistry(kHetero, &no_metadata, &no_metadata);
  register_kineto();
  torch::profiler::impl::registerPrivateUse1Methods(new ProfilerEvents);
  at::RegisterPrivateUse1HooksInterface(new HeteroHooks);
  at::setHostAllocator(kHetero, &pinned_allocator());
}

}  // namespace hetero::ops
