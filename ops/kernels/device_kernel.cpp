#include "ops/kernels/device_kernel.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend/registry/registry.h"
#include "graph/ir/kernel_settings.h"
#include "ops/kernels/boxed.h"
#include "ops/kernels/device_attention.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/linear.h"
#include "ops/memory/storage_memory.h"
#include "ops/record/op_info.h"
#include "ops/settings/errors.h"
#include "ops/table/operator_row.h"
#include "ops/tensor/alias.h"

#if defined(HETERO_WITH_CUDA)
#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "backend/cuda/cuda_device.h"
#endif

namespace hetero::ops {
namespace {

using graph::Invocation;

// ---- which kernel -------------------------------------------------------------------------------

// An operator of the table as the device's kernels see it; OpTraits::device_self.
struct DeviceOperator {
  explicit DeviceOperator(const c10::OperatorHandle& handle) : info(handle) {}

  const OpInfo info;
  mutable std::once_flag searched;
  mutable std::optional<c10::OperatorHandle> out;
};

bool has_kernel(const c10::OperatorHandle& handle) {
  return handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CUDA);
}

// Whether `out` takes the arguments of `plain`, and then a tensor for each of its results.
bool is_out_of(const c10::FunctionSchema& out, const c10::FunctionSchema& plain) {
  const std::vector<c10::Argument>& given = plain.arguments();
  const std::vector<c10::Argument>& taken = out.arguments();
  if (taken.size() != given.size() + plain.returns().size()) return false;
  for (size_t i = 0; i < taken.size(); ++i) {
    if (i >= given.size()) {
      if (!taken[i].is_out()) return false;
    } else if (taken[i].name() != given[i].name() || *taken[i].type() != *given[i].type() || taken[i].is_out()) {
      return false;
    }
  }
  return true;
}

// The variant of the operator that writes into given memory, where a kernel of the device's own
// does. The others call the operator and copy.
std::optional<c10::OperatorHandle> find_out(const OpInfo& info) {
  // Before they sum it, binary_cross_entropy's make the loss of each element in a resized view of
  // the output, and then sum the output's first element alone (PyTorch 2.11, on CUDA and on the
  // CPU).
  if (info.row.no_device_out) return std::nullopt;
  const auto makes_tensor = [](OpInfo::Return result) { return result == OpInfo::Return::kTensor; };
  if (info.returns.empty() || !std::ranges::all_of(info.returns, makes_tensor)) return std::nullopt;
  static const auto* const overloads = [] {
    auto* made = new std::unordered_multimap<std::string, c10::OperatorName>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) made->emplace(name.name, name);
    return made;
  }();
  const auto [first, last] = overloads->equal_range(info.handle.operator_name().name);
  for (auto it = first; it != last; ++it) {
    const auto handle = c10::Dispatcher::singleton().findSchema(it->second);
    if (handle.has_value() && handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
        is_out_of(handle->schema(), info.handle.schema())) {
      return handle;
    }
  }
  return std::nullopt;
}

// ---- memory that runs out, recordings -----------------------------------------------------------

c10::DeviceAllocator* gpu_allocator() {
  return kernel_device().is_cuda() ? c10::getDeviceAllocator(c10::DeviceType::CUDA) : nullptr;
}

void give_memory_back() {
  backend::accelerator()->empty_cache();
  if (c10::DeviceAllocator* const allocator = gpu_allocator()) allocator->emptyCache();
}

bool is_recorded_now() {
#if defined(HETERO_WITH_CUDA)
  return backend::CudaDevice::is_recording();
#else
  return false;
#endif
}

// Calls `run` while its kernels are recorded. A graph must not use memory that PyTorch's allocator
// may give to others, or back to the system. What a library keeps for a stream is taken once, so
// the next recording may do without.
template <typename Run>
void record(const Run& run) {
#if defined(HETERO_WITH_CUDA)
  const auto taken = [] { return gpu_allocator()->getDeviceStats(0).allocation[0].allocated; };
  const int64_t before = taken();
  run();
  if (taken() != before) backend::CudaDevice::postpone_recording();
#else
  run();
#endif
}

// ---- on copies ----------------------------------------------------------------------------------

// The operands' bytes in the host's memory, one copy of each buffer.
class HostCopies {
 public:
  HostCopies(const Invocation& invocation, c10::Device device) : invocation_(invocation) {
    std::map<void*, int64_t> reach;
    for (int i = 0; i < invocation.node->operand_count; ++i) {
      int64_t& bytes = reach[invocation.data[i]];
      bytes = std::max(bytes, (*invocation.windows)[invocation.operands[i].window].last_byte);
    }
    for (const auto& [address, bytes] : reach) {
      std::unique_ptr<std::byte[]>& copy = copies_[address];
      copy = std::make_unique<std::byte[]>(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
      if (bytes == 0) continue;
      at::Tensor host = bytes_at(copy.get(), bytes, c10::kCPU);
      host.copy_(bytes_at(address, bytes, device));
    }
    for (int i = 0; i < invocation.node->operand_count; ++i) data_.push_back(copies_[invocation.data[i]].get());
  }

  Invocation invocation() const {
    Invocation host = invocation_;
    host.data = data_.data();
    host.brought = nullptr;
    host.bindings = nullptr;
    host.by_device = false;
    return host;
  }

  void bring_back() {
    const Invocation host = invocation();
    KernelTensors there(invocation_);
    KernelTensors here(host);
    for (int i = 0; i < invocation_.node->operand_count; ++i) {
      if (invocation_.operands[i].writes()) const_cast<at::Tensor&>(there.operand(i)).copy_(here.operand(i));
    }
  }

 private:
  const Invocation& invocation_;
  std::map<void*, std::unique_ptr<std::byte[]>> copies_;  // by the address there
  std::vector<void*> data_;
};

std::string first_line(const std::exception_ptr& raised) {
  try {
    std::rethrow_exception(raised);
  } catch (const c10::Error& error) {
    const std::string words = error.what_without_backtrace();
    return words.substr(0, words.find('\n'));
  }
}

// By the CPU's kernel. `refusal`: what the device's raised, which is the error where the device
// does not even copy any more.
void run_on_copies(const Invocation& invocation, const std::exception_ptr& refusal) {
  std::optional<HostCopies> copies;
  try {
    const Isolated isolated;
    copies.emplace(invocation, kernel_device());
  } catch (...) {
    std::rethrow_exception(refusal);
  }
  const Invocation host = copies->invocation();
  host.traits->kernel(host);
  const Isolated isolated;
  copies->bring_back();
  counters().rescues.count(invocation.traits->name + ": " + first_line(refusal));
}

// ---- the kernels --------------------------------------------------------------------------------

void call_stock(const Invocation& invocation) {
  const auto& self = *static_cast<const DeviceOperator*>(invocation.traits->device_self);
  std::call_once(self.searched, [&] { self.out = find_out(self.info); });
  const Isolated isolated;
  call_operator(invocation, self.info, handle_of(self.info), self.out.has_value() ? &*self.out : nullptr);
}

// Of PyTorch's CUDA kernels.
uint64_t find_kernel_settings() {
  using at::Float32Backend;
  using at::Float32Op;
  const at::Context& context = at::globalContext();
  uint64_t all = 0;
  const auto add = [&all](auto setting) { all = all << 2 | (static_cast<uint64_t>(setting) & 3); };
  for (const Float32Op op : {Float32Op::ALL, Float32Op::MATMUL, Float32Op::CONV, Float32Op::RNN}) {
    add(context.float32Precision(Float32Backend::CUDA, op));
  }
  add(context.allowFP16ReductionCuBLAS());
  add(context.allowBF16ReductionCuBLAS());
  add(context.userEnabledCuDNN());
  add(context.benchmarkCuDNN());
  add(context.deterministicCuDNN());
  add(context.deterministicAlgorithms());
  return all;
}

// Runs `call`, which may be called twice: it writes outputs only, or raises before it writes
// anything.
template <graph::KernelFunction call>
void run(const Invocation& invocation) {
  if (is_recorded_now()) return record([&] { call(invocation); });
  std::exception_ptr refusal;
  try {
    return call(invocation);
  } catch (const c10::OutOfMemoryError&) {
    give_memory_back();
    try {
      return call(invocation);
    } catch (const c10::Error&) {
      refusal = std::current_exception();
    }
  } catch (const c10::Error&) {
    refusal = std::current_exception();
  }
  run_on_copies(invocation, refusal);
}

void call_addmm(const Invocation& invocation) {
  invocation.part == graph::Part::kWhole ? call_stock(invocation) : run_addmm_part(invocation);
}

// What DEVICE of the op table names, an entry for each row.
struct WrittenHere {
  graph::KernelFunction kernel = nullptr;
  constexpr WrittenHere by(graph::KernelFunction function) const { return {function}; }
  constexpr operator graph::KernelFunction() const { return kernel; }
};
constexpr graph::KernelFunction kWrittenHere[] = {
#define HETERO_ALL_ROWS
#define ROW(...) WrittenHere() __VA_ARGS__,
#define DEVICE(function) .by(&run<&function>)
#include "ops/table/op_table.def"
};

bool is_random(const OpInfo& info) { return info.seeded || info.generator_argument >= 0; }

}  // namespace

void connect_kernel_settings() { graph::set_kernel_settings(&find_kernel_settings); }

void add_device_kernel(graph::OpTraits& traits) {
  const size_t row = describe_operator(traits.name).index;
  const graph::KernelFunction own = row == OperatorRow::kNoRow ? nullptr : kWrittenHere[row];
  const size_t dot = traits.name.find('.');
  const std::string overload = dot == std::string::npos ? "" : traits.name.substr(dot + 1);
  const auto handle = c10::Dispatcher::singleton().findSchema({traits.name.substr(0, dot), overload});
  if (!handle.has_value()) return;
  if (own == nullptr && !has_kernel(*handle)) return;
  auto made = std::make_unique<DeviceOperator>(*handle);
  if (is_random(made->info)) return;
  traits.device_kernel = own == nullptr ? &run<&call_stock> : own;
  traits.device_self = made.release();  // entries of the table live for ever
}

backend::Block borrow_gpu_storage(c10::Storage storage) {
  c10::StorageImpl* const impl = storage.unsafeReleaseStorageImpl();
  const auto release = [](void* context, void*, size_t) {
    c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context));
  };
  void* const data = impl->_mutable_data_ptr_no_checks().get();
  if (data != nullptr) return backend::Block::adopt(data, impl->nbytes(), release, impl);
  // An empty one has no pointer, but a block must have one.
  c10::raw::intrusive_ptr::decref(impl);
  static char nothing[64];
  return backend::Block::adopt(nothing, 0, nullptr, nullptr);
}

c10::Storage make_gpu_storage(size_t bytes) {
  c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::CUDA);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            allocator->allocate(bytes), allocator, true));
}

void copy_to_gpu(HeteroStorage* storage, const c10::Storage& to) {
  const auto bytes = static_cast<int64_t>(storage->nbytes());
  const bool there = backend::contains(storage->binding.valid_on, backend::kGpu);
  if (!there) {
    if (const Status status = bring_to_host(storage); !status.ok()) raise(status);
  }
  void* const from = storage->binding.blocks[there ? backend::kGpu : backend::kCpu].data();
  if (bytes == 0 || from == to.data()) return;
  const Isolated isolated;
  bytes_at(to.mutable_data(), bytes, to.device())
      .copy_(bytes_at(from, bytes, there ? to.device() : c10::Device(c10::kCPU)));
  wait_for_gpu();
}

void wait_for_gpu() {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  guard.synchronizeStream(guard.getStream(guard.getDevice()));
}

#if defined(HETERO_WITH_CUDA)

namespace {

// An external stream's number is its address (c10/cuda/CUDAStream.h).
void make_current(void* stream) {
  static thread_local std::vector<c10::Stream> outer;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  if (stream != nullptr) {
    outer.push_back(guard.exchangeStream(
        c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), reinterpret_cast<int64_t>(stream))));
  } else {
    guard.exchangeStream(outer.back());
    outer.pop_back();
  }
}

bool has_torch_cuda() { return c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA); }

// Loads the part of torch for CUDA. Python's torch has loaded it; a program in C++ links the part
// for the CPU, beside which it lies. Returns why it cannot.
std::string load_torch_cuda() {
  Dl_info part{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &part) == 0 || part.dli_fname == nullptr) return "";
  const std::filesystem::path library = std::filesystem::path(part.dli_fname).parent_path() / "libtorch_cuda.so";
  std::error_code ignored;
  if (!std::filesystem::exists(library, ignored)) return "this one is for the CPU only";
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return "";
  const char* const problem = dlerror();
  return problem != nullptr ? problem : "";
}

}  // namespace

Status connect_to_gpu() {
  const std::string problem = has_torch_cuda() ? "" : load_torch_cuda();
  if (!has_torch_cuda()) {
    return Status(ErrorClass::kDevice, "the accelerator \"cuda\" needs a torch with CUDA; " +
                                           (problem.empty() ? "its part for CUDA was not found" : problem));
  }
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  backend::set_stream_hook(&make_current);
  backend::set_memory_hook([] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->emptyCache(); });
  return Status();
}

#else

Status connect_to_gpu() { return Status(); }

#endif

}  // namespace hetero::ops
