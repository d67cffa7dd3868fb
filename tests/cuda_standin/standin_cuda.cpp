// A stand-in for CUDA on a machine without a GPU: the CUDA runtime on the host. For tests of what
// surrounds kernels: streams, events, captures, memory, copies, dispatch. standin_device.cpp adds
// what is said of the device and the part of the driver that PyTorch and hetero open at run time,
// standin_blas.cpp products of matrices.
//
//   tests/cuda_standin/build.sh
//   tests/cuda_standin/run.sh .venv/bin/python -c 'import torch; torch.zeros(4, device="cuda")'
//
// PyTorch finds its libraries by RPATH, so LD_LIBRARY_PATH would come too late. The library's name
// for the loader is libcuda.so.1: whoever opens the driver gets this one. Programs must take the
// runtime as a shared library (CMake: CUDA::cudart), since a static one is not replaced; build.sh
// makes such a copy of hetero's.
//
// What it does
//   Every operation is done when it is submitted, by the thread that submits it. A capture records instead; its graph
//   does what was recorded, whenever it is launched. The rules of captures (modes, forks and joins, what is refused and
//   ends them) hold. Copies beyond an allocation or in the wrong direction, and unknown handles, are errors.
// What it does not
//   Kernels compute nothing: they are counted. The exception is the one that copies pieces (standin_pieces.cpp). Memory
//   is zero when it is new and otherwise what it was. No two operations of a stream overlap with what submits them, so
//   a missing wait goes unnoticed. There is one device, and no code for it is looked at: modules have functions of
//   every name. Whatever else PyTorch may call prints its name and reports that it is not supported (make_stubs.py).
//
// Environment
//   STANDIN_TRACE=1         prints each launch: the kernel, the grid and the stream
//   STANDIN_MEMORY_MIB=n    the device's memory; 8192 where it is not set
//   STANDIN_GUARD=1         device memory can be read and written by copies and products only; others fault, as they
//                           would with a GPU
//   STANDIN_NO_DRIVER=1     the driver reports an error, so that hetero has no fused kernels
// For tests there are the functions standin_* below, by dlsym or ctypes.

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "standin.h"

namespace standin {

bool environment_flag(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMebibyte = size_t{1} << 20;

struct Operation {
  const char* kernel = nullptr;  // its name, mangled; null where it is not a launch
  dim3 grid{};
  dim3 block{};
  std::function<void()> run{};
  std::vector<size_t> after{};  // in a graph
};

struct Graph {
  std::vector<Operation> operations;
};

struct Stream;

struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  Stream* origin;
  bool valid = true;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
};

struct Stream {
  Stream(unsigned long long id, unsigned flags, int priority) : id(id), flags(flags), priority(priority) {}

  const unsigned long long id;
  const unsigned flags;
  const int priority;
  bool destroyed = false;
  std::atomic<long> launches{0};
  std::recursive_mutex running;      // held while an operation runs
  std::shared_ptr<Capture> capture;  // null where there is none
  std::vector<size_t> last;          // of the capture: what the next operation comes after
};

struct Event {
  unsigned flags;
  bool recorded = false;
  Clock::time_point time{};
  bool captured = false;
  std::weak_ptr<Capture> capture{};  // that it was recorded in
  std::vector<size_t> last{};
};

struct Range {
  size_t bytes;
  cudaMemoryType type;
  char* access;       // where the stand-in reads and writes it
  bool owned = true;  // by this library, which is to release it
};

// What all of it knows. Leaked: libraries unregister their kernels when the process ends.
struct World {
  std::mutex mutex;
  std::map<uintptr_t, Range> ranges;  // by their first address
  size_t used = 0;                    // bytes of device memory
  size_t peak = 0;
  size_t limit = 8192 * kMebibyte;
  bool guard = environment_flag("STANDIN_GUARD");
  bool trace = environment_flag("STANDIN_TRACE");
  Stream default_stream{0, cudaStreamDefault, 0};
  std::unordered_set<Stream*> streams;
  std::unordered_map<Event*, std::shared_ptr<Event>> events;
  std::vector<std::shared_ptr<Capture>> captures;  // those that go on
  std::unordered_map<const void*, const char*> kernels;
  std::unordered_map<const void*, void*> variables;
  unsigned long long ids = 0;
  std::atomic<long> launches{0};
  std::atomic<long> graph_launches{0};

  World() {
    if (const char* set = std::getenv("STANDIN_MEMORY_MIB")) limit = std::strtoull(set, nullptr, 10) * kMebibyte;
  }
};

World& world_of_process() {
  static World* const world = new World;
  return *world;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// ---- Memory

// The range that holds an address, or null.
const std::pair<const uintptr_t, Range>* find_range(const void* address) {
  const auto key = reinterpret_cast<uintptr_t>(address);
  auto it = world_of_process().ranges.upper_bound(key);
  if (it == world_of_process().ranges.begin()) return nullptr;
  --it;
  return key - it->first < it->second.bytes ? &*it : nullptr;
}

// As the driver may do before it changes what is mapped: whoever calls it under a lock that an operation waits for, waits
// for ever.
void wait_for_operations() {
  World& world = world_of_process();
  std::vector<Stream*> streams{&world.default_stream};
  {
    const std::lock_guard lock(world.mutex);
    streams.insert(streams.end(), world.streams.begin(), world.streams.end());
  }
  for (Stream* const stream : streams) const std::lock_guard lock(stream->running);
}

cudaError_t allocate_memory(void** result, size_t bytes, cudaMemoryType type) {
  World& world = world_of_process();
  make_context();
  if (result == nullptr) return cudaErrorInvalidValue;
  *result = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (type == cudaMemoryTypeHost) wait_for_operations();
  const std::lock_guard lock(world.mutex);
  const bool on_device = type == cudaMemoryTypeDevice;
  if (on_device && (bytes > world.limit || world.used > world.limit - bytes)) return cudaErrorMemoryAllocation;
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  void* address = MAP_FAILED;
  void* access = MAP_FAILED;
  if (on_device && world.guard) {
    const int file = memfd_create("standin", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0) {
      address = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
      access = mmap(nullptr, bytes, kReadWrite, MAP_SHARED | MAP_NORESERVE, file, 0);
    }
    if (file >= 0) close(file);
  } else {
    address = access = mmap(nullptr, bytes, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (address == MAP_FAILED || access == MAP_FAILED) return cudaErrorMemoryAllocation;
  world.ranges[reinterpret_cast<uintptr_t>(address)] = {bytes, type, static_cast<char*>(access)};
  if (on_device) world.peak = std::max(world.peak, world.used += bytes);
  *result = address;
  return cudaSuccess;
}

cudaError_t release_memory(void* address, cudaMemoryType type) {
  World& world = world_of_process();
  make_context();
  if (address == nullptr) return cudaSuccess;
  if (type == cudaMemoryTypeHost) wait_for_operations();
  const std::lock_guard lock(world.mutex);
  const auto it = world.ranges.find(reinterpret_cast<uintptr_t>(address));
  if (it == world.ranges.end() || it->second.type != type || !it->second.owned) return cudaErrorInvalidValue;
  const Range range = it->second;
  world.ranges.erase(it);
  munmap(address, range.bytes);
  if (range.access != address) munmap(range.access, range.bytes);
  if (type == cudaMemoryTypeDevice) world.used -= range.bytes;
  return cudaSuccess;
}

// Whether `bytes` from an address on are within one allocation, or not of this library, and where.
bool within(const void* address, size_t bytes, cudaMemoryType& type) {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  const auto* const found = find_range(address);
  type = found == nullptr ? cudaMemoryTypeUnregistered : found->second.type;
  return found == nullptr || bytes <= found->second.bytes - (reinterpret_cast<uintptr_t>(address) - found->first);
}

cudaError_t check_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaMemoryType to_type, from_type;
  if (!within(to, bytes, to_type) || !within(from, bytes, from_type)) return cudaErrorInvalidValue;
  const bool into_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  const auto fits = [](cudaMemoryType type, bool device) {
    return type == cudaMemoryTypeHost || (type == cudaMemoryTypeDevice) == device;
  };
  const bool right = fits(to_type, into_device) && fits(from_type, from_device);
  return right ? cudaSuccess : cudaErrorInvalidValue;
}

// ---- Streams and captures

// Null where there is no such stream. The caller holds the world's mutex.
Stream* find_stream(cudaStream_t handle) {
  World& world = world_of_process();
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return &world.default_stream;
  auto* const stream = reinterpret_cast<Stream*>(handle);
  return world.streams.count(stream) != 0 && !stream->destroyed ? stream : nullptr;
}

void trace_launch(const Operation& operation, const void* stream, const char* how) {
  int status = 0;
  char* const readable = abi::__cxa_demangle(operation.kernel, nullptr, nullptr, &status);
  std::fprintf(stderr, "standin: %s %s <<<%ux%ux%u, %ux%ux%u>>> stream %p\n", how,
               status == 0 ? readable : operation.kernel, operation.grid.x, operation.grid.y, operation.grid.z,
               operation.block.x, operation.block.y, operation.block.z, stream);
  std::free(readable);
}

void run_operation(Stream& stream, const Operation& operation) {
  World& world = world_of_process();
  const std::lock_guard lock(stream.running);
  if (operation.kernel != nullptr) {
    ++stream.launches;
    ++world.launches;
    if (world.trace) trace_launch(operation, &stream == &world.default_stream ? nullptr : &stream, "launch");
  }
  if (operation.run) operation.run();
}

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.valid = false;
  return error;
}

// Does the operation now, or makes it a part of the capture.
cudaError_t submit(cudaStream_t handle, Operation operation) {
  World& world = world_of_process();
  make_context();
  Stream* stream = nullptr;
  {
    const std::lock_guard lock(world.mutex);
    stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream == &world.default_stream) {
      for (const auto& capture : world.captures) {
        if ((capture->origin->flags & cudaStreamNonBlocking) != 0) continue;
        return invalidate(*capture, cudaErrorStreamCaptureImplicit);
      }
    }
    if (Capture* const capture = stream->capture.get()) {
      if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
      if (world.trace && operation.kernel != nullptr) trace_launch(operation, stream, "capture");
      operation.after = std::exchange(stream->last, {capture->graph->operations.size()});
      capture->graph->operations.push_back(std::move(operation));
      return cudaSuccess;
    }
  }
  run_operation(*stream, operation);
  return cudaSuccess;
}

cudaError_t do_on_stream(cudaStream_t stream, std::function<void()> run) {
  return noted(submit(stream, Operation{.run = std::move(run)}));
}

// For calls that a capture does not allow, by the mode of the thread.
cudaError_t check_captures() {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (const auto& capture : world.captures) {
    const bool own = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
    const bool others = capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (own || others) error = invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  }
  return error;
}

// Calls f with a stream, under the world's mutex.
template <typename F>
cudaError_t with_stream(cudaStream_t handle, F f) {
  const std::lock_guard lock(world_of_process().mutex);
  Stream* const stream = find_stream(handle);
  return noted(stream == nullptr ? cudaErrorInvalidResourceHandle : f(*stream));
}

// A stream on which one may wait, or ask, right now.
cudaError_t find_idle(cudaStream_t handle, Stream*& stream) {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  return stream->capture == nullptr ? cudaSuccess : invalidate(*stream->capture, cudaErrorStreamCaptureUnsupported);
}

std::shared_ptr<Event> find_event(cudaEvent_t handle) {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  const auto it = world.events.find(reinterpret_cast<Event*>(handle));
  return it == world.events.end() ? nullptr : it->second;
}

// Whether everything in a capture comes before the end of the stream on which it began.
bool is_joined(const Graph& graph, const std::vector<size_t>& last) {
  std::vector<bool> seen(graph.operations.size());
  std::vector<size_t> open = last;
  while (!open.empty()) {
    const size_t at = open.back();
    open.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    open.insert(open.end(), graph.operations[at].after.begin(), graph.operations[at].after.end());
  }
  return std::find(seen.begin(), seen.end(), false) == seen.end();
}

cudaError_t create_stream(cudaStream_t* result, unsigned flags, int priority) {
  World& world = world_of_process();
  make_context();
  if (result == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0) return cudaErrorInvalidValue;
  const std::lock_guard lock(world.mutex);
  auto* const stream = new Stream{++world.ids, flags, priority};
  world.streams.insert(stream);
  *result = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

const char* name_of_kernel(const void* function) {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  const auto it = world.kernels.find(function);
  return it == world.kernels.end() ? "unregistered kernel" : it->second;
}

struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  CUstream_st* stream;
};
thread_local std::vector<CallConfiguration> call_configurations;

}  // namespace

size_t memory_limit() { return world_of_process().limit; }

cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

void* access_to(const void* address) {
  const std::lock_guard lock(world_of_process().mutex);
  const auto* const found = find_range(address);
  if (found == nullptr) return const_cast<void*>(address);
  return found->second.access + (reinterpret_cast<uintptr_t>(address) - found->first);
}

cudaError_t launch_kernel(cudaStream_t stream, const char* name, dim3 grid, dim3 block, std::function<void()> run) {
  return submit(stream, {.kernel = name, .grid = grid, .block = block, .run = std::move(run)});
}

}  // namespace standin

using namespace standin;

extern "C" {

// Called by the stubs (make_stubs.py).
void standin_missing(const char* name) {
  std::fprintf(stderr, "standin: %s is not implemented\n", name);
  if (std::strncmp(name, "cuda", 4) == 0) last_error = cudaErrorNotSupported;
}

// ---- For tests

// Launches on a stream so far, including those by graphs; null is the default stream. -1 where
// there was none such.
long standin_launches(void* stream) {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  if (find_stream(static_cast<cudaStream_t>(stream)) == &world.default_stream) return world.default_stream.launches;
  auto* const it = static_cast<Stream*>(stream);
  return world.streams.count(it) != 0 ? it->launches.load() : -1;
}
long standin_launches_total() { return world_of_process().launches; }
long standin_launches_on_default_stream() { return world_of_process().default_stream.launches; }
long standin_graph_launches() { return world_of_process().graph_launches; }
size_t standin_memory_used() { return world_of_process().used; }
size_t standin_memory_peak() { return world_of_process().peak; }
void standin_set_memory_limit(size_t bytes) { world_of_process().limit = bytes; }
void standin_set_trace(int on) { world_of_process().trace = on != 0; }
// Where the host can read what is at an address of the device, also with STANDIN_GUARD.
void* standin_access(void* address) { return access_to(address); }

// ---- Kernels, as compiled code registers and launches them

void** __cudaRegisterFatBinary(void*) { return reinterpret_cast<void**>(&world_of_process()); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const std::lock_guard lock(world_of_process().mutex);
  world_of_process().kernels[function] = name;
}

void __cudaRegisterVar(void**, char* variable, char*, const char*, int, size_t bytes, int, int) {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  void* const memory = std::calloc(1, std::max<size_t>(bytes, 1));
  world.variables[variable] = memory;
  const Range range{bytes, cudaMemoryTypeDevice, static_cast<char*>(memory), false};
  world.ranges[reinterpret_cast<uintptr_t>(memory)] = range;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  return call_configurations.push_back({grid, block, shared, stream}), 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (call_configurations.empty()) return noted(cudaErrorMissingConfiguration);
  const CallConfiguration& last = call_configurations.back();
  *grid = last.grid, *block = last.block, *shared = last.shared;
  *static_cast<CUstream_st**>(stream) = last.stream;
  call_configurations.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return noted(launch_kernel(stream, name_of_kernel(function), grid, block));
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  return noted(launch_kernel(stream, name_of_kernel(kernel), grid, block));
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                        cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) {
  return noted(launch_kernel(config->stream, name_of_kernel(function), config->gridDim, config->blockDim));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* result, const void*) {
  *result = {};
  result->maxThreadsPerBlock = 1024;
  result->numRegs = 32;
  result->ptxVersion = result->binaryVersion = 90;
  result->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t) {
  *blocks = std::clamp(2048 / std::max(threads, 1), 1, 32);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   size_t shared, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  const std::lock_guard lock(world_of_process().mutex);
  const auto it = world_of_process().variables.find(symbol);
  if (it == world_of_process().variables.end()) return noted(cudaErrorInvalidSymbol);
  *address = it->second;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind) {
  void* address = nullptr;
  if (const cudaError_t error = cudaGetSymbolAddress(&address, symbol)) return error;
  return cudaMemcpy(static_cast<char*>(address) + offset, from, bytes, cudaMemcpyDefault);
}

// ---- Errors

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
#define NAME(which) \
  case which:       \
    return #which
  switch (error) {
    NAME(cudaSuccess);
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInvalidDevice);
    NAME(cudaErrorMissingConfiguration);
    NAME(cudaErrorInvalidSymbol);
    NAME(cudaErrorInvalidResourceHandle);
    NAME(cudaErrorIllegalState);
    NAME(cudaErrorNotReady);
    NAME(cudaErrorNotSupported);
    NAME(cudaErrorCapturedEvent);
    NAME(cudaErrorPeerAccessUnsupported);
    NAME(cudaErrorHostMemoryAlreadyRegistered);
    NAME(cudaErrorNoDevice);
    NAME(cudaErrorHostMemoryNotRegistered);
    NAME(cudaErrorStreamCaptureUnsupported);
    NAME(cudaErrorStreamCaptureInvalidated);
    NAME(cudaErrorStreamCaptureMerge);
    NAME(cudaErrorStreamCaptureUnmatched);
    NAME(cudaErrorStreamCaptureUnjoined);
    NAME(cudaErrorStreamCaptureIsolation);
    NAME(cudaErrorStreamCaptureImplicit);
    NAME(cudaErrorStreamCaptureWrongThread);
    default:
      return "another error";
  }
#undef NAME
}
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  return error == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(error);
}

cudaError_t cudaDeviceSynchronize() {
  make_context();
  return noted(check_captures());
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- Memory

cudaError_t cudaMalloc(void** result, size_t bytes) {
  if (const cudaError_t error = check_captures()) return noted(error);
  return noted(allocate_memory(result, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaFree(void* address) {
  if (const cudaError_t error = check_captures()) return noted(error);
  return noted(release_memory(address, cudaMemoryTypeDevice));
}
cudaError_t cudaMallocHost(void** result, size_t bytes) { return cudaHostAlloc(result, bytes, cudaHostAllocDefault); }
cudaError_t cudaHostAlloc(void** result, size_t bytes, unsigned) {
  if (const cudaError_t error = check_captures()) return noted(error);
  return noted(allocate_memory(result, bytes, cudaMemoryTypeHost));
}
cudaError_t cudaFreeHost(void* address) {
  if (const cudaError_t error = check_captures()) return noted(error);
  return noted(release_memory(address, cudaMemoryTypeHost));
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  World& world = world_of_process();
  if (address == nullptr || bytes == 0) return noted(cudaErrorInvalidValue);
  const std::lock_guard lock(world.mutex);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const auto next = world.ranges.lower_bound(begin);
  if (find_range(address) != nullptr || (next != world.ranges.end() && next->first < begin + bytes)) {
    return noted(cudaErrorHostMemoryAlreadyRegistered);
  }
  world.ranges[begin] = {bytes, cudaMemoryTypeHost, static_cast<char*>(address), false};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  const auto it = world.ranges.find(reinterpret_cast<uintptr_t>(address));
  if (it == world.ranges.end() || it->second.owned || it->second.type != cudaMemoryTypeHost) {
    return noted(cudaErrorHostMemoryNotRegistered);
  }
  world.ranges.erase(it);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** result, void* address, unsigned) { return *result = address, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  World& world = world_of_process();
  const std::lock_guard lock(world.mutex);
  *total = world.limit;
  *free = world.limit - std::min(world.used, world.limit);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* result, const void* address) {
  const std::lock_guard lock(world_of_process().mutex);
  const auto* const found = find_range(address);
  *result = {};
  void* const it = const_cast<void*>(address);
  result->type = found == nullptr ? cudaMemoryTypeUnregistered : found->second.type;
  result->device = found == nullptr ? cudaInvalidDeviceId : 0;
  if (result->type != cudaMemoryTypeUnregistered) result->devicePointer = it;
  if (result->type != cudaMemoryTypeDevice) result->hostPointer = it;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = check_copy(to, from, bytes, kind)) return noted(error);
  return do_on_stream(stream, [=] { std::memmove(access_to(to), access_to(from), bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = check_captures()) return noted(error);
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                                 cudaStream_t stream) {
  const bool described = attributes != nullptr && firsts != nullptr && attribute_count != 0 && firsts[0] == 0;
  // The default stream is refused, as by the runtime.
  if (count == 0 || !described || stream == nullptr) return noted(cudaErrorInvalidValue);
  for (size_t i = 0; i < count; ++i) {
    if (const cudaError_t error = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream)) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch,
                                              static_cast<const char*>(from) + row * from_pitch, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  cudaMemoryType type;
  const bool inside = within(to, bytes, type);
  if (!inside || (bytes != 0 && type == cudaMemoryTypeUnregistered)) return noted(cudaErrorInvalidValue);
  return do_on_stream(stream, [=] { std::memset(access_to(to), value, bytes); });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (const cudaError_t error = check_captures()) return noted(error);
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  return *pool = reinterpret_cast<cudaMemPool_t>(&world_of_process()), cudaSuccess;
}
cudaError_t cudaMallocAsync(void** result, size_t bytes, cudaStream_t) {
  return noted(allocate_memory(result, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return noted(release_memory(address, cudaMemoryTypeDevice)); }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  return *static_cast<uint64_t*>(value) = world_of_process().used, cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// ---- Streams and events

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return noted(create_stream(stream, cudaStreamDefault, 0)); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return noted(create_stream(stream, flags, 0));
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return noted(create_stream(stream, flags, std::clamp(priority, -5, 0)));
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return with_stream(handle, [](Stream& it) {
    if (&it == &world_of_process().default_stream) return cudaErrorInvalidResourceHandle;
    if (it.capture != nullptr) return invalidate(*it.capture, cudaErrorStreamCaptureUnsupported);
    it.destroyed = true;  // kept for standin_launches, and so that its address is not another stream's
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Stream* stream = nullptr;
  if (const cudaError_t error = find_idle(handle, stream)) return noted(error);
  const std::lock_guard lock(stream->running);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Stream* stream = nullptr;
  if (const cudaError_t error = find_idle(handle, stream)) return noted(error);
  const std::unique_lock lock(stream->running, std::try_to_lock);
  return lock.owns_lock() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return with_stream(stream, [=](const Stream& it) { return *priority = it.priority, cudaSuccess; });
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return with_stream(stream, [=](const Stream& it) { return *flags = it.flags, cudaSuccess; });
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return with_stream(stream, [=](const Stream& it) { return *id = it.id, cudaSuccess; });
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* context) {
  return do_on_stream(stream, [=] { function(context); });
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* context, unsigned) {
  return do_on_stream(stream, [=] { function(stream, cudaSuccess, context); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* result, unsigned flags) {
  World& world = world_of_process();
  make_context();
  auto event = std::make_shared<Event>(Event{.flags = flags});
  const std::lock_guard lock(world.mutex);
  *result = reinterpret_cast<cudaEvent_t>(event.get());
  world.events.emplace(event.get(), std::move(event));
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(world_of_process().mutex);
  const bool existed = world_of_process().events.erase(reinterpret_cast<Event*>(event)) != 0;
  return noted(existed ? cudaSuccess : cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  const std::shared_ptr<Event> event = find_event(handle);
  World& world = world_of_process();
  {
    const std::lock_guard lock(world.mutex);
    Stream* const stream = find_stream(stream_handle);
    if (event == nullptr || stream == nullptr) return noted(cudaErrorInvalidResourceHandle);
    event->captured = stream->capture != nullptr && (flags & cudaEventRecordExternal) == 0;
    event->capture = stream->capture;
    event->last = stream->last;
    if (event->captured) return noted(stream->capture->valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
  }
  return do_on_stream(stream_handle, [event] {
    const std::lock_guard lock(world_of_process().mutex);
    event->recorded = true;
    event->time = Clock::now();
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const std::shared_ptr<Event> event = find_event(handle);
  if (event == nullptr) return noted(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(world_of_process().mutex);
  if (!event->captured) return cudaSuccess;
  if (const auto capture = event->capture.lock()) capture->valid = false;
  return noted(cudaErrorCapturedEvent);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = check_captures()) return noted(error);
  return cudaEventSynchronize(event);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  const std::shared_ptr<Event> from = find_event(first), to = find_event(second);
  if (from == nullptr || to == nullptr) return noted(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(world_of_process().mutex);
  const auto timed = [](const Event& it) { return it.recorded && (it.flags & cudaEventDisableTiming) == 0; };
  if (!timed(*from) || !timed(*to)) return noted(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  const std::shared_ptr<Event> event = find_event(event_handle);
  const std::lock_guard lock(world_of_process().mutex);
  Stream* const stream = find_stream(handle);
  if (event == nullptr || stream == nullptr) return noted(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = event->captured ? event->capture.lock() : nullptr;
  if (event->captured && (capture == nullptr || stream == &world_of_process().default_stream)) {
    return noted(cudaErrorCapturedEvent);
  }
  if (capture == nullptr) {
    const bool foreign = stream->capture != nullptr && event->recorded && (flags & cudaEventWaitExternal) == 0;
    return noted(foreign ? invalidate(*stream->capture, cudaErrorStreamCaptureIsolation) : cudaSuccess);
  }
  if (stream->capture == nullptr) {
    stream->capture = capture;
    stream->last.clear();
  } else if (stream->capture != capture) {
    stream->capture->valid = false;
    return noted(invalidate(*capture, cudaErrorStreamCaptureMerge));
  }
  stream->last.insert(stream->last.end(), event->last.begin(), event->last.end());
  return cudaSuccess;
}

// ---- Captures and graphs

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return with_stream(handle, [=](Stream& it) {
    World& world = world_of_process();
    if (&it == &world.default_stream) return cudaErrorStreamCaptureUnsupported;
    if (it.capture != nullptr) return cudaErrorIllegalState;
    it.capture = std::make_shared<Capture>(Capture{++world.ids, mode, std::this_thread::get_id(), &it});
    it.last.clear();
    world.captures.push_back(it.capture);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* result) {
  *result = nullptr;
  return with_stream(handle, [=](Stream& origin) {
    World& world = world_of_process();
    const std::shared_ptr<Capture> capture = origin.capture;
    if (capture == nullptr) return cudaErrorIllegalState;
    if (capture->origin != &origin) return invalidate(*capture, cudaErrorStreamCaptureUnmatched);
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
      return invalidate(*capture, cudaErrorStreamCaptureWrongThread);
    }
    const bool joined = is_joined(*capture->graph, origin.last);
    for (Stream* const stream : world.streams) {
      if (stream->capture == capture) stream->capture = nullptr, stream->last.clear();
    }
    std::erase(world.captures, capture);
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    *result = reinterpret_cast<cudaGraph_t>(new std::shared_ptr<Graph>(capture->graph));
    return cudaSuccess;
  });
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  return with_stream(handle, [=](const Stream& it) {
    const Capture* const capture = it.capture.get();
    *status = capture == nullptr ? cudaStreamCaptureStatusNone
              : capture->valid   ? cudaStreamCaptureStatusActive
                                 : cudaStreamCaptureStatusInvalidated;
    if (capture != nullptr && id != nullptr) *id = capture->id;
    if (graph != nullptr) *graph = nullptr;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

// Both handles of a graph point at a reference to it.
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* result, cudaGraph_t graph, unsigned long long) {
  *result =
      reinterpret_cast<cudaGraphExec_t>(new std::shared_ptr<Graph>(*reinterpret_cast<std::shared_ptr<Graph>*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* result, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(result, graph, flags);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
  const std::shared_ptr<Graph> graph = *reinterpret_cast<std::shared_ptr<Graph>*>(handle);
  ++world_of_process().graph_launches;
  for (Operation operation : graph->operations) {
    if (const cudaError_t error = submit(stream, std::move(operation))) return noted(error);
  }
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const std::vector<Operation>& operations = (*reinterpret_cast<std::shared_ptr<Graph>*>(graph))->operations;
  if (nodes == nullptr) return *count = operations.size(), cudaSuccess;
  *count = std::min(*count, operations.size());
  for (size_t i = 0; i < *count; ++i) {
    nodes[i] = reinterpret_cast<cudaGraphNode_t>(const_cast<Operation*>(&operations[i]));
  }
  return cudaSuccess;
}

}  // extern "C"
