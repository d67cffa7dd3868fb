#include "backend/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/spin_lock.h"
#include "backend/cuda/cuda_status.h"
#include "backend/cuda/fused/driver.h"
#include "backend/cuda/fused/engine.h"
#include "backend/cuda/fused/interpreter.h"
#include "backend/cuda/fused/nvrtc.h"
#include "backend/cuda/host_pages.h"
#include "backend/cuda/piece_kernel.h"
#include "backend/cuda/staging_pool.h"
#include "backend/device/atomic_counters.h"
#include "backend/device/piece_copies.h"
#include "backend/fused/call.h"
#include "backend/memory/allocator.h"

namespace hetero::backend {
namespace {

std::atomic<StreamHook> stream_hook{nullptr};
std::atomic<MemoryHook> memory_hook{nullptr};
thread_local void* stream_of_task = nullptr;

// What tasks do, while this thread records them, that a graph must not repeat.
struct Capture {
  bool takes_memory = false;  // which may be somebody else's by the time that the graph runs
  bool provisional = false;   // kernels for which better code is on its way
};
thread_local Capture* capture_of_thread = nullptr;

// While a stream of this thread is being captured, calls that may wait for the GPU are refused and
// end the capture. Where memory and code that they get stay for as long as the device lives,
// nothing is wrong with them.
class AllowedInCapture {
 public:
  AllowedInCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~AllowedInCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  AllowedInCapture(const AllowedInCapture&) = delete;
  AllowedInCapture& operator=(const AllowedInCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Makes a GPU the calling thread's current device, and the previous one again at the end.
class CurrentGpu {
 public:
  explicit CurrentGpu(int ordinal) {
    if (cudaGetDevice(&previous_) == cudaSuccess && previous_ == ordinal) previous_ = kNone;
    if (previous_ != kNone) cudaSetDevice(ordinal);
  }
  ~CurrentGpu() {
    if (previous_ != kNone) cudaSetDevice(previous_);
  }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  static constexpr int kNone = -1;
  int previous_ = 0;
};

// What all parts of a device know.
struct Gpu {
  int ordinal;
  int created_in_fork_generation = fork_generation();

  Status check_not_forked() const {
    if (fork_generation() == created_in_fork_generation) return Status();
    return Status(ErrorClass::kDevice, "cuda: the device cannot be used in a forked process");
  }
};

Result<void*> acquire_device_memory(void* context, size_t bytes) {
  const Gpu& gpu = *static_cast<Gpu*>(context);
  const CurrentGpu current(gpu.ordinal);
  void* data = nullptr;
  Status status = cuda_status(cudaMalloc(&data, bytes), "cudaMalloc");
  const MemoryHook hook = memory_hook.load(std::memory_order_acquire);
  if (!status.ok() && status.error_class() == ErrorClass::kResource && hook != nullptr) {
    hook();
    status = cuda_status(cudaMalloc(&data, bytes), "cudaMalloc");
  }
  if (!status.ok()) return status;
  return data;
}

void release_device_memory(void* context, void* data, size_t) {
  const Gpu& gpu = *static_cast<Gpu*>(context);
  if (!gpu.check_not_forked().ok()) return;
  const CurrentGpu current(gpu.ordinal);
  static_cast<void>(cuda_status(cudaFree(data), "cudaFree"));
}

class CudaEvent final : public Event {
 public:
  CudaEvent(const Gpu& gpu, unsigned flags) : gpu_(gpu) {
    const CurrentGpu current(gpu_.ordinal);
    created_ = cuda_status(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  ~CudaEvent() override {
    if (event_ != nullptr && gpu_.check_not_forked().ok()) cudaEventDestroy(event_);
  }

  // A failed device reports done, so that nobody polls for ever; synchronize then says what failed.
  bool query() const override {
    if (!created_.ok() || !gpu_.check_not_forked().ok()) return true;
    return cudaEventQuery(event_) != cudaErrorNotReady;
  }

  Status synchronize() override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    if (!created_.ok()) return created_;
    return cuda_status(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }

  const Status& created() const { return created_; }
  cudaEvent_t handle() const { return event_; }

 private:
  const Gpu& gpu_;
  Status created_;
  cudaEvent_t event_ = nullptr;
};

class CudaSegment final : public Segment {
 public:
  CudaSegment(const Gpu& gpu, const Queue& queue, cudaGraphExec_t graph) : gpu_(gpu), queue_(queue), graph_(graph) {}
  ~CudaSegment() override {
    if (!gpu_.check_not_forked().ok()) return;
    const CurrentGpu current(gpu_.ordinal);
    static_cast<void>(cuda_status(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy"));
  }
  bool belongs_to(const Queue& queue) const { return &queue == &queue_; }
  cudaGraphExec_t graph() const { return graph_; }

 private:
  const Gpu& gpu_;
  const Queue& queue_;
  const cudaGraphExec_t graph_;
};

std::vector<CopyRange> without_empty(std::span<const CopyRange> all) {
  std::vector<CopyRange> ranges;
  std::ranges::copy_if(all, std::back_inserter(ranges), [](const CopyRange& range) { return range.bytes != 0; });
  return ranges;
}

// A piece in a staging buffer is aligned for the largest words of PieceKernel.
size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

class CudaQueue final : public Queue, public PieceCopies {
 public:
  CudaQueue(const Gpu& gpu, AtomicCounters& counters, PieceKernel& pieces)
      : gpu_(gpu), counters_(counters), pieces_(pieces) {}

  ~CudaQueue() override {
    if (stream_ == nullptr || !gpu_.check_not_forked().ok()) return;
    cudaStreamSynchronize(stream_);  // host functions on the stream use staging_
    cudaStreamDestroy(stream_);
    if (capture_stream_ != nullptr) cudaStreamDestroy(capture_stream_);
  }

  Status open() {
    const CurrentGpu current(gpu_.ordinal);
    return cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }

  Status launch(Task task) override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    const CurrentGpu current(gpu_.ordinal);
    run_on(stream_, task);
    counters_.count_launch();
    return Status();
  }

  Result<std::unique_ptr<Segment>> record_segment(std::span<const Task> tasks) override;

  Status launch_segment(Segment& segment) override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    const auto* own = dynamic_cast<const CudaSegment*>(&segment);
    if (own == nullptr || !own->belongs_to(*this)) {
      return Status(ErrorClass::kUsage, "cuda: a queue can launch only segments that it recorded");
    }
    const CurrentGpu current(gpu_.ordinal);
    Status status = cuda_status(cudaGraphLaunch(own->graph(), stream_), "cudaGraphLaunch");
    if (status.ok()) counters_.count_launch();
    return status;
  }

  Status copy(void* destination, const void* source, size_t bytes) override;
  Status copy_batch(std::span<const CopyRange> ranges) override;
  Result<bool> copy_pieces(std::span<const CopyRange> ranges) override;

  Status record(Event& event) override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    auto* own = dynamic_cast<CudaEvent*>(&event);
    if (own == nullptr) {
      return Status(ErrorClass::kUsage, "cuda: a queue can record only events of its own device");
    }
    if (!own->created().ok()) return own->created();
    counters_.count_record();
    const CurrentGpu current(gpu_.ordinal);
    return cuda_status(cudaEventRecord(own->handle(), stream_), "cudaEventRecord");
  }

  Status wait(Event& event) override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    counters_.count_wait();
    auto* own = dynamic_cast<CudaEvent*>(&event);
    // Another device's event cannot be put on a stream, so it is waited for here and now.
    if (own == nullptr) return event.query() ? Status() : event.synchronize();
    if (!own->created().ok()) return own->created();
    const CurrentGpu current(gpu_.ordinal);
    return cuda_status(cudaStreamWaitEvent(stream_, own->handle(), 0), "cudaStreamWaitEvent");
  }

  Status synchronize() override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    return cuda_status(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  static void run_on(cudaStream_t stream, const Task& task) {
    const StreamHook hook = stream_hook.load(std::memory_order_acquire);
    void* const outer = std::exchange(stream_of_task, stream);
    if (hook != nullptr) hook(stream);
    task.run(task.context);
    if (hook != nullptr) hook(nullptr);
    stream_of_task = outer;
  }

  Result<cudaGraph_t> capture(std::span<const Task> tasks, Capture& seen);

  // What the host does for staged copies; a host function on the stream runs and deletes it.
  struct HostStep {
    StagingPool* pool;
    std::vector<CopyRange> copies;
    void* released;  // the buffer that is free afterwards; null for none
  };

  static void run_host_step(void* context) {
    const std::unique_ptr<HostStep> step(static_cast<HostStep*>(context));
    for (const CopyRange& copy : step->copies) std::memcpy(copy.destination, copy.source, copy.bytes);
    if (step->released != nullptr) step->pool->release(step->released);
  }

  Status enqueue(std::vector<CopyRange> copies, void* released) {
    auto owned = std::make_unique<HostStep>(HostStep{&staging_, std::move(copies), released});
    const Status status = cuda_status(cudaLaunchHostFunc(stream_, run_host_step, owned.get()), "cudaLaunchHostFunc");
    if (status.ok()) static_cast<void>(owned.release());
    return status;
  }

  Status copy_async(void* destination, const void* source, size_t bytes) {
    return cuda_status(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }

  // The stream fills or drains the buffer between these two host steps, one of which copies
  // nothing.
  Status copy_piece_in(void* destination, const void* source, size_t bytes, void* buffer) {
    Status status = enqueue({{buffer, source, bytes}}, nullptr);
    if (status.ok()) status = copy_async(destination, buffer, bytes);
    if (status.ok()) status = enqueue({}, buffer);
    return status;
  }
  Status copy_piece_out(void* destination, const void* source, size_t bytes, void* buffer) {
    Status status = copy_async(buffer, source, bytes);
    if (status.ok()) status = enqueue({{destination, buffer, bytes}}, buffer);
    return status;
  }
  Result<void*> acquire_buffer() {
    return staging_.acquire([this] {
      const cudaError_t error = cudaStreamQuery(stream_);
      return error == cudaErrorNotReady ? Status() : cuda_status(error, "cudaStreamQuery");
    });
  }

  Status copy_staged(char* destination, const char* source, size_t bytes, bool into_device) {
    for (size_t done = 0; done < bytes; done += StagingPool::kBufferBytes) {
      const size_t piece = std::min(StagingPool::kBufferBytes, bytes - done);
      Result<void*> buffer = acquire_buffer();
      if (!buffer.ok()) return buffer.status();
      const Status status = into_device ? copy_piece_in(destination + done, source + done, piece, buffer.value())
                                        : copy_piece_out(destination + done, source + done, piece, buffer.value());
      // After an error the stream is lost and with it the buffer, which it may still be using.
      if (!status.ok()) return status;
    }
    return Status();
  }

  // Between pinned memory and the GPU's, in one call where the runtime and the driver know batches.
  Status copy_many(std::span<const CopyRange> ranges) {
#if CUDART_VERSION >= 12080
    std::vector<void*> destinations;
    std::vector<const void*> sources;
    std::vector<size_t> sizes;
    for (const CopyRange& range : ranges) {
      destinations.push_back(range.destination);
      sources.push_back(range.source);
      sizes.push_back(range.bytes);
    }
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
#if CUDART_VERSION >= 13000
    const cudaError_t error = cudaMemcpyBatchAsync(destinations.data(), sources.data(), sizes.data(), sizes.size(),
                                                   &attributes, &first, 1, stream_);
#else
    size_t failed = 0;
    const cudaError_t error =
        cudaMemcpyBatchAsync(destinations.data(), const_cast<void**>(sources.data()), sizes.data(), sizes.size(),
                             &attributes, &first, 1, &failed, stream_);
#endif
    if (error != cudaErrorNotSupported && error != cudaErrorCallRequiresNewerDriver) {
      return cuda_status(error, "cudaMemcpyBatchAsync");
    }
    cudaGetLastError();
#endif
    for (const CopyRange& range : ranges) {
      if (Status status = copy_async(range.destination, range.source, range.bytes); !status.ok()) return status;
    }
    return Status();
  }

  // Where several ranges go. If it is not one way, the rest says nothing.
  struct Way {
    bool is_one = false, into_device = false, pageable = false;
  };
  static Way way_of(std::span<const CopyRange> ranges);
  // Calls copy(part) for parts of the ranges, in order: as many as have together at most the bytes
  // of a staging buffer, by bytes_of(range), or one that has more.
  template <typename BytesOf, typename Copy>
  static Status for_each_part(std::span<const CopyRange> ranges, const BytesOf& bytes_of, const Copy& copy);

  // Ranges that go one way, as one transfer. If they are pageable and several, they fit into a
  // staging buffer.
  Status copy_part(std::span<const CopyRange> ranges, bool into_device, bool pageable);
  // The same, by one kernel. A staging buffer has room for its table, and for pageable ranges.
  Status copy_part_by_kernel(std::span<const CopyRange> ranges, bool into_device, bool pageable);

  // Through one buffer, into which the host gathers what goes to the GPU, and from which it
  // scatters what comes from there.
  Status copy_many_staged(std::span<const CopyRange> ranges, bool into_device) {
    Result<void*> buffer = acquire_buffer();
    if (!buffer.ok()) return buffer.status();
    std::vector<CopyRange> in;   // to the buffer
    std::vector<CopyRange> out;  // from it
    size_t offset = 0;
    for (const CopyRange& range : ranges) {
      char* const piece = static_cast<char*>(buffer.value()) + offset;
      in.push_back({piece, range.source, range.bytes});
      out.push_back({range.destination, piece, range.bytes});
      offset += range.bytes;
    }
    Status status = into_device ? enqueue(std::move(in), nullptr) : copy_many(in);
    if (status.ok() && into_device) status = copy_many(out);
    if (status.ok()) status = enqueue(into_device ? std::vector<CopyRange>() : std::move(out), buffer.value());
    return status;
  }

  const Gpu& gpu_;
  AtomicCounters& counters_;
  PieceKernel& pieces_;
  StagingPool staging_;
  cudaStream_t stream_ = nullptr;
  std::mutex capture_mutex_;               // one thread captures at a time
  cudaStream_t capture_stream_ = nullptr;  // made when the first segment is recorded
};

// The capture is of a stream of its own, since other threads may submit to the queue meanwhile,
// which would become a part of the graph. Memory that fused kernels have for a stream is then of
// this one, and safe: its graphs all run on this queue, one after the other.
Result<cudaGraph_t> CudaQueue::capture(std::span<const Task> tasks, Capture& seen) {
  if (capture_stream_ == nullptr) {
    const cudaError_t error = cudaStreamCreateWithFlags(&capture_stream_, cudaStreamNonBlocking);
    if (Status status = cuda_status(error, "cudaStreamCreateWithFlags"); !status.ok()) return status;
  }
  const cudaError_t begun = cudaStreamBeginCapture(capture_stream_, cudaStreamCaptureModeThreadLocal);
  if (Status status = cuda_status(begun, "cudaStreamBeginCapture"); !status.ok()) return status;
  capture_of_thread = &seen;
  for (const Task& task : tasks) run_on(capture_stream_, task);
  capture_of_thread = nullptr;
  cudaGraph_t graph = nullptr;
  // Whatever was refused in between is an error here, and the stream is as before.
  Status status = cuda_status(cudaStreamEndCapture(capture_stream_, &graph), "cudaStreamEndCapture");
  return status.ok() ? Result<cudaGraph_t>(graph) : status;
}

// Multiply-adds of 2-byte floats that a multiprocessor's tensor cores do in a cycle, summed in
// float32 and without sparsity, from NVIDIA's white papers on Volta, Turing, GA100, GA102, Ada,
// Hopper and Blackwell. For 8.x and 12.x those of GeForce; other cards do twice as many. 0:
// unknown.
double half_lanes(ComputeCapability capability) {
  switch (capability.major) {
    // clang-format off
    case 7: return 512;
    case 8: return capability.minor == 0 ? 1024 : 256;
    case 9: return 2048;
    case 10: return 4096;
    case 12: return 256;
    default: return 0;
      // clang-format on
  }
}

Result<std::unique_ptr<Segment>> CudaQueue::record_segment(std::span<const Task> tasks) {
  if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
  const std::lock_guard lock(capture_mutex_);
  const CurrentGpu current(gpu_.ordinal);
  Capture seen;
  const Result<cudaGraph_t> graph = capture(tasks, seen);
  if (!graph.ok()) return graph.status();
  cudaGraphExec_t executable = nullptr;
  Status status;
  if (seen.takes_memory) {
    status = Status(ErrorClass::kUsage, "cuda: a task takes memory while it is recorded; launch it alone");
  } else if (!seen.provisional) {
    status = cuda_status(cudaGraphInstantiate(&executable, graph.value(), 0), "cudaGraphInstantiate");
  }
  static_cast<void>(cuda_status(cudaGraphDestroy(graph.value()), "cudaGraphDestroy"));
  if (!status.ok()) return status;
  if (executable == nullptr) return std::unique_ptr<Segment>();
  return std::unique_ptr<Segment>(std::make_unique<CudaSegment>(gpu_, *this, executable));
}

Status CudaQueue::copy(void* destination, const void* source, size_t bytes) {
  if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
  if (bytes == 0) return Status();
  const CurrentGpu current(gpu_.ordinal);
  const PageKind to = page_kind_of(destination, bytes);
  const PageKind from = page_kind_of(source, bytes);
  const bool into_device = to == PageKind::kDevice;
  const bool from_device = from == PageKind::kDevice;
  counters_.count_copy(into_device, from_device, bytes);
  if (!into_device && !from_device) {
    return enqueue({{destination, source, bytes}}, nullptr);
  }
  if (to == PageKind::kPageable || from == PageKind::kPageable) {
    return copy_staged(static_cast<char*>(destination), static_cast<const char*>(source), bytes, into_device);
  }
  return copy_async(destination, source, bytes);
}

CudaQueue::Way CudaQueue::way_of(std::span<const CopyRange> ranges) {
  Way way;
  size_t into_device = 0, from_device = 0;
  for (const CopyRange& range : ranges) {
    const PageKind to = page_kind_of(range.destination, range.bytes);
    const PageKind from = page_kind_of(range.source, range.bytes);
    into_device += to == PageKind::kDevice;
    from_device += from == PageKind::kDevice;
    way.pageable |= to == PageKind::kPageable || from == PageKind::kPageable;
  }
  way.into_device = into_device != 0;
  way.is_one = (into_device == ranges.size() && from_device == 0) || (from_device == ranges.size() && into_device == 0);
  return way;
}

template <typename BytesOf, typename Copy>
Status CudaQueue::for_each_part(std::span<const CopyRange> ranges, const BytesOf& bytes_of, const Copy& copy) {
  for (size_t first = 0; first < ranges.size();) {
    size_t bytes = 0, end = first;
    while (end < ranges.size() && bytes_of(ranges[end]) <= StagingPool::kBufferBytes - bytes) {
      bytes += bytes_of(ranges[end++]);
    }
    end = std::max(end, first + 1);
    if (Status status = copy(ranges.subspan(first, end - first)); !status.ok()) return status;
    first = end;
  }
  return Status();
}

Status CudaQueue::copy_batch(std::span<const CopyRange> all) {
  if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
  const std::vector<CopyRange> ranges = without_empty(all);
  const CurrentGpu current(gpu_.ordinal);
  const Way way = way_of(ranges);
  if (ranges.size() < 2 || !way.is_one) return Queue::copy_batch(ranges);
  const auto bytes_of = [&](const CopyRange& range) { return way.pageable ? range.bytes : 0; };
  return for_each_part(ranges, bytes_of,
                       [&](std::span<const CopyRange> part) { return copy_part(part, way.into_device, way.pageable); });
}

Result<bool> CudaQueue::copy_pieces(std::span<const CopyRange> all) {
  if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
  const std::vector<CopyRange> ranges = without_empty(all);
  const CurrentGpu current(gpu_.ordinal);
  // On this thread the driver may not know the GPU's context yet.
  if (Status status = cuda_status(cudaSetDevice(gpu_.ordinal), "cudaSetDevice"); !status.ok()) return status;
  const Way way = way_of(ranges);
  if (ranges.size() < 2 || !way.is_one || !pieces_.is_there()) return false;
  const auto is_reached = [&](const CopyRange& range) {
    return is_reached_by_kernels(way.into_device ? range.source : range.destination);
  };
  if (!way.pageable && !std::ranges::all_of(ranges, is_reached)) return false;
  const auto bytes_of = [&](const CopyRange& range) {
    return sizeof(CopyPiece) + 16 + (way.pageable ? aligned(range.bytes) : 0);
  };
  Status status = for_each_part(ranges, bytes_of, [&](std::span<const CopyRange> part) {
    return copy_part_by_kernel(part, way.into_device, way.pageable);
  });
  if (!status.ok()) return status;
  return true;
}

Status CudaQueue::copy_part_by_kernel(std::span<const CopyRange> ranges, bool into_device, bool pageable) {
  if (ranges.size() == 1) return copy(ranges[0].destination, ranges[0].source, ranges[0].bytes);
  Result<void*> buffer = acquire_buffer();
  if (!buffer.ok()) return buffer.status();
  auto* const table = static_cast<CopyPiece*>(buffer.value());
  char* staged = static_cast<char*>(buffer.value()) + aligned(ranges.size() * sizeof(CopyPiece));
  std::vector<CopyRange> host_copies;
  size_t bytes = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    CopyRange range = ranges[i];
    if (pageable) {
      host_copies.push_back(into_device ? CopyRange{staged, range.source, range.bytes}
                                        : CopyRange{range.destination, staged, range.bytes});
      if (into_device) range.source = staged;
      if (!into_device) range.destination = staged;
      staged += aligned(range.bytes);
    }
    table[i] = {static_cast<char*>(range.destination), static_cast<const char*>(range.source), range.bytes};
    bytes += range.bytes;
    counters_.count_copy(into_device, !into_device, range.bytes);
  }
  counters_.count_copy_batch();
  counters_.count_launch();
  Status status = pageable && into_device ? enqueue(std::move(host_copies), nullptr) : Status();
  if (status.ok()) status = pieces_.launch(table, ranges.size(), bytes, stream_);
  if (status.ok()) status = enqueue(into_device ? std::vector<CopyRange>() : std::move(host_copies), buffer.value());
  return status;
}

Status CudaQueue::copy_part(std::span<const CopyRange> ranges, bool into_device, bool pageable) {
  if (ranges.size() == 1) return copy(ranges[0].destination, ranges[0].source, ranges[0].bytes);
  for (const CopyRange& range : ranges) counters_.count_copy(into_device, !into_device, range.bytes);
  counters_.count_copy_batch();
  return pageable ? copy_many_staged(ranges, into_device) : copy_many(ranges);
}

class CudaDeviceImplementation final : public CudaDevice {
 public:
  explicit CudaDeviceImplementation(int ordinal)
      : gpu_{ordinal}, allocator_({acquire_device_memory, release_device_memory, &gpu_, false}, name_) {}

  // Errors: those of the CUDA runtime.
  Status open() {
    for (auto& queue : queues_) {
      queue = std::make_unique<CudaQueue>(gpu_, counters_, pieces_);
      if (Status status = queue->open(); !status.ok()) return status;
    }
    use_page_locks();
    read_capabilities();
    measure_link();
    measure_launches();
    return Status();
  }

  const std::string& name() const override { return name_; }
  std::string model() const override {
    cudaDeviceProp properties{};
    int driver = 0;
    const bool known = cuda_status(cudaGetDeviceProperties(&properties, gpu_.ordinal), "cudaGetDeviceProperties").ok();
    (void)cuda_status(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    return (known ? properties.name : "unknown") + (", driver " + std::to_string(driver));
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  Result<Block> allocate(size_t bytes) override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    if (capture_of_thread != nullptr) capture_of_thread->takes_memory = true;
    return allocator_.allocate(bytes);
  }
  Queue& queue(QueueKind kind) override { return *queues_[static_cast<size_t>(kind)]; }
  std::unique_ptr<Event> create_event() override { return std::make_unique<CudaEvent>(gpu_, cudaEventDisableTiming); }
  std::unique_ptr<Event> create_timed_event() override { return std::make_unique<CudaEvent>(gpu_, cudaEventDefault); }
  Result<double> seconds_between(const Event& first, const Event& second) const override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    const auto* const from = dynamic_cast<const CudaEvent*>(&first);
    const auto* const to = dynamic_cast<const CudaEvent*>(&second);
    if (from == nullptr || to == nullptr) return Device::seconds_between(first, second);
    float milliseconds = 0;
    if (Status status =
            cuda_status(cudaEventElapsedTime(&milliseconds, from->handle(), to->handle()), "cudaEventElapsedTime");
        !status.ok()) {
      return status;
    }
    return static_cast<double>(milliseconds) * 1e-3;
  }
  Status synchronize() override {
    for (auto& queue : queues_) {
      if (Status status = queue->synchronize(); !status.ok()) return status;
    }
    return Status();
  }
  Status wait_for_stream(void* stream) override {
    if (Status status = gpu_.check_not_forked(); !status.ok()) return status;
    CudaEvent reached(gpu_, cudaEventDisableTiming);
    if (!reached.created().ok()) return reached.created();
    {
      const CurrentGpu current(gpu_.ordinal);
      Status status =
          cuda_status(cudaEventRecord(reached.handle(), static_cast<cudaStream_t>(stream)), "cudaEventRecord");
      if (!status.ok()) return status;
    }
    for (auto& queue : queues_) {
      if (Status status = queue->wait(reached); !status.ok()) return status;
    }
    return Status();
  }
  Status let_stream_wait(void* stream) override {
    for (auto& queue : queues_) {
      CudaEvent reached(gpu_, cudaEventDisableTiming);
      if (Status status = queue->record(reached); !status.ok()) return status;
      const CurrentGpu current(gpu_.ordinal);
      Status status = cuda_status(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), reached.handle(), 0),
                                  "cudaStreamWaitEvent");
      if (!status.ok()) return status;
    }
    return Status();
  }
  bool can_fuse(const FusedKernel& kernel) const override {
    std::call_once(engine_opened_, [&] { open_engine(); });
    return engine_ != nullptr && engine_->can_fuse(kernel);
  }
  bool runs_host_kernels() const override { return false; }
  // As open_engine() says.
  Result<bool> run_fused(const FusedCall& call) override {
    if (Status status = cuda_status(cudaSetDevice(gpu_.ordinal), "cudaSetDevice"); !status.ok()) return status;
    if (Status status = enqueue(call); !status.ok()) return status;
    return true;
  }
  int64_t provisional_runs() const override { return provisional_runs_.load(std::memory_order_relaxed); }
  void prepare_fused(const FusedCall& call) override { engine_->prepare(call); }
  void empty_cache() override { allocator_.empty_cache(); }
  // The smaller of this and what was free when the device was made holds.
  void set_memory_limit(size_t bytes) override {
    allocator_.set_memory_limit(bytes == 0 ? capacity_ : std::min(bytes, capacity_));
  }
  MemoryStats memory_stats() const override { return allocator_.stats(); }
  void reset_peak() override { allocator_.reset_peak(); }
  DeviceCounters counters() const override { return counters_.read(); }

 private:
  // Peak figures of the data sheet: clocks in kHz, two transfers a memory clock, two operations a
  // multiply-add.
  void read_capabilities() {
    constexpr double kLanesPerMultiprocessor = 128;
    capabilities_.flops =
        attribute(cudaDevAttrMultiProcessorCount) * kLanesPerMultiprocessor * 2 * attribute(cudaDevAttrClockRate) * 1e3;
    capabilities_.memory_bandwidth =
        attribute(cudaDevAttrMemoryClockRate) * 1e3 * 2 * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
    capabilities_.flops_half =
        attribute(cudaDevAttrMultiProcessorCount) * 2 * attribute(cudaDevAttrClockRate) * 1e3 *
        half_lanes({attribute(cudaDevAttrComputeCapabilityMajor), attribute(cudaDevAttrComputeCapabilityMinor)});
    capabilities_.launch_latency = 5e-6;
    capabilities_.copy_latency = 10e-6;
    capabilities_.parallelism = static_cast<double>(attribute(cudaDevAttrMultiProcessorCount)) *
                                attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    size_t free = 0;
    size_t total = 0;
    if (cuda_status(cudaMemGetInfo(&free, &total), "cudaMemGetInfo").ok()) capacity_ = free - free / 16;
    set_memory_limit(0);
  }

  // The least time that `submit` and what it gave to the queues took in a few rounds, since another
  // process may disturb one; 0 where nothing could be measured.
  template <typename Submit>
  double least_seconds(Submit&& submit) {
    constexpr int kRounds = 5;
    double least = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      if (!submit() || !synchronize().ok()) return 0;
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return least;
  }

  // What a kernel takes that does next to nothing, in a row of them, the host's part included:
  // PyTorch's and ours are launched in the same way.
  void measure_launches() {
    constexpr int kLaunches = 100;
    Result<Block> block = allocate(sizeof(int));
    if (!block.ok()) return;
    const auto set = [](void* number) {
      (void)cudaMemsetAsync(number, 0, sizeof(int), static_cast<cudaStream_t>(stream_of_task));
    };
    Queue& compute = queue(QueueKind::kCompute);
    const double seconds = least_seconds([&] {
      for (int i = 0; i < kLaunches; ++i) {
        if (!compute.launch({set, block.value().data()}).ok()) return false;
      }
      return true;
    });
    if (seconds > 0) capabilities_.launch_latency = seconds / kLaunches;
  }

  // Copies both ways at once, as programs do, of a size that hides what each copy costs, and then
  // so small that there is nothing else. Without a link's figures placement would guess.
  void measure_link() {
    constexpr size_t kBytes = size_t{32} << 20;
    constexpr int kSmallCopies = 50;
    const QueueKind kinds[] = {QueueKind::kHostToDevice, QueueKind::kDeviceToHost};
    void* host[2] = {};
    Block device[2];
    for (int i = 0; i < 2; ++i) {
      Result<Block> block = allocate(kBytes);
      if (block.ok()) device[i] = std::move(block.value());
      if (cudaMallocHost(&host[i], kBytes) != cudaSuccess) host[i] = nullptr;
    }
    double bandwidth[2] = {};
    if (device[0] && device[1] && host[0] != nullptr && host[1] != nullptr) {
      for (int round = 0; round < 3; ++round) {
        const auto begin = std::chrono::steady_clock::now();
        (void)queue(kinds[0]).copy(device[0].data(), host[0], kBytes);
        (void)queue(kinds[1]).copy(host[1], device[1].data(), kBytes);
        for (int i = 0; i < 2; ++i) {
          if (!queue(kinds[i]).synchronize().ok()) continue;
          const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
          bandwidth[i] = std::max(bandwidth[i], static_cast<double>(kBytes) / seconds.count());
        }
      }
      const double seconds = least_seconds([&] {
        for (int copy = 0; copy < kSmallCopies; ++copy) {
          if (!queue(kinds[0]).copy(device[0].data(), host[0], sizeof(int)).ok()) return false;
          if (!queue(kinds[1]).copy(host[1], device[1].data(), sizeof(int)).ok()) return false;
        }
        return true;
      });
      if (seconds > 0) capabilities_.copy_latency = seconds / kSmallCopies;
    }
    for (void* memory : host) {
      if (memory != nullptr) (void)cudaFreeHost(memory);
    }
    capabilities_.copy_bandwidth = bandwidth[0];
    capabilities_.readback_bandwidth = bandwidth[1];
  }

  int attribute(cudaDeviceAttr which) const {
    int value = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&value, which, gpu_.ordinal);
    return cuda_status(error, "cudaDeviceGetAttribute").ok() ? value : 0;
  }

  Status enqueue(const FusedCall& call) {
    if (capture_of_thread == nullptr) {
      bool provisional = false;
      Status status = engine_->run(call, stream_of_task, &provisional);
      if (provisional) provisional_runs_.fetch_add(1, std::memory_order_relaxed);
      return status;
    }
    const AllowedInCapture allowed;
    return engine_->run(call, stream_of_task, &capture_of_thread->provisional);
  }

  // None where the driver is missing, or the compiler and an interpreter for this GPU.
  void open_engine() const {
    const CudaDriver* const driver = CudaDriver::get();
    if (driver == nullptr || !gpu_.check_not_forked().ok()) return;
    const CurrentGpu current(gpu_.ordinal);
    // On this thread the driver may not know the GPU's context yet.
    if (!cuda_status(cudaSetDevice(gpu_.ordinal), "cudaSetDevice").ok()) return;
    const Nvrtc* const nvrtc = Nvrtc::get();
    const ComputeCapability capability{attribute(cudaDevAttrComputeCapabilityMajor),
                                       attribute(cudaDevAttrComputeCapabilityMinor)};
    if (nvrtc != nullptr && nvrtc->supports(capability)) {
      compiler_ = std::make_unique<NvrtcCompiler>(*nvrtc, capability);
    }
    machine_ = std::make_unique<DriverMachine>(*driver, attribute(cudaDevAttrMultiProcessorCount),
                                               [this](size_t bytes) { return allocator_.allocate(bytes); });
    engine_ = std::make_unique<FusedEngine>(
        *machine_, compiler_.get(),
        FusedEngine::Options{.cache_folder = KernelCache::default_folder(), .interpreter = fused_interpreter_code()});
  }

  size_t capacity_ = 0;  // bytes; 0 where it is not known
  const std::string name_ = "cuda";
  Gpu gpu_;
  Capabilities capabilities_;
  mutable CachingAllocator allocator_;
  AtomicCounters counters_;
  PieceKernel pieces_;
  // Of fused kernels, made when the first one is asked about.
  mutable std::once_flag engine_opened_;
  mutable std::unique_ptr<NvrtcCompiler> compiler_;
  mutable std::unique_ptr<DriverMachine> machine_;
  mutable std::unique_ptr<FusedEngine> engine_;
  std::atomic<int64_t> provisional_runs_{0};
  // Destroyed first, which waits for what uses the others.
  std::array<std::unique_ptr<CudaQueue>, kQueueKinds> queues_;
};

}  // namespace

void set_memory_hook(MemoryHook hook) { memory_hook.store(hook, std::memory_order_release); }

void set_stream_hook(StreamHook hook) { stream_hook.store(hook, std::memory_order_release); }

void* CudaDevice::current_stream() { return stream_of_task; }

bool CudaDevice::is_recording() { return capture_of_thread != nullptr; }

void CudaDevice::postpone_recording() {
  if (capture_of_thread != nullptr) capture_of_thread->provisional = true;
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(int ordinal) {
  int count = 0;
  const Status counted = cuda_status(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (!counted.ok()) {
    return Status(ErrorClass::kDevice, "no CUDA device is available (" + counted.message() + ")");
  }
  if (ordinal < 0 || ordinal >= count) {
    return Status(ErrorClass::kDevice, "no CUDA device with ordinal " + std::to_string(ordinal) +
                                           "; this machine has " + std::to_string(count));
  }
  auto device = std::make_unique<CudaDeviceImplementation>(ordinal);
  if (Status status = device->open(); !status.ok()) return status;
  return std::unique_ptr<CudaDevice>(std::move(device));
}

}  // namespace hetero::backend
