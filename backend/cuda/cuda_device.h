// CudaDevice: an NVIDIA GPU as a Device, over the CUDA runtime.
//
// Each queue (QueueKind) is a stream, and Events are cudaEvents. Memory comes from a
// CachingAllocator over cudaMalloc. It releases its cache and asks once more before it reports that
// memory ran out.
//
// Tasks are not host functions on the stream, because cudaLaunchHostFunc forbids CUDA calls, and
// every kernel would wait for a host thread. Instead `launch` makes the queue's stream current and
// calls task.run at once, on the calling thread; the task enqueues its kernels on the stream. The
// library whose kernels run knows how to make a stream current, so ops/ supplies that: see
// set_stream_hook.
//
// Segments are CUDA graphs. Tasks are captured on a stream that nothing else uses, and launched on
// the queue's. A failure during a capture, such as a call that waits for the GPU or takes memory,
// ends the capture and nothing else. Fused kernels that are still interpreted are not recorded
// before their code exists.
//
// Copies are asynchronous. Large host memory that is copied again is page-locked in place
// (host_ranges.h). Pageable memory goes in pieces through a pinned StagingPool. The copy between
// the two host buffers is then a host function on the stream. It thus has its place in the queue's
// order, and does not read bytes before earlier work has written them. copy() blocks only while all
// staging buffers are in use. A batch of copies is one cudaMemcpyBatchAsync if runtime and driver
// have it (CUDA 12.8); pageable memory goes through a staging buffer for each 4 MiB. Many small
// pieces are copied by one kernel, where it is asked for (PieceCopies).
//
// Fused kernels are interpreted, and compiled at run time if the machine has NVRTC (engine.h).
//
// Thread safety: any thread. In a forked child the CUDA runtime is unusable: every call fails with
// kDevice, and Blocks leak.
// Ownership: a Block is released only when no submitted work uses it. The registry's device is
// leaked; destroying another one synchronizes with the GPU.
//
// Compiled only with the CMake option HETERO_CUDA. Including this header needs no CUDA header.

#pragma once

#include <memory>
#include <string>

#include "backend/device/device.h"

namespace hetero::backend {

// Makes `stream` (a cudaStream_t) the calling thread's current stream for the kernels that it
// enqueues; null restores what was current before the last call with a stream. Called before and
// after every task.
using StreamHook = void (*)(void* stream);

// Sets the hook. With null, tasks find their stream through CudaDevice::current_stream.
void set_stream_hook(StreamHook hook);

// Makes another library's allocator release its cached memory to the GPU. Called when memory runs
// out, before asking once more.
using MemoryHook = void (*)();
void set_memory_hook(MemoryHook hook);

class CudaDevice : public Device {
 public:
  // The GPU with this ordinal. Errors: kDevice, "no CUDA device ...", without such a GPU or without
  // a driver.
  static Result<std::unique_ptr<CudaDevice>> create(int ordinal = 0);

  // Names the GPU and driver that measurements belong to: "NVIDIA H200, driver 12040".
  virtual std::string model() const = 0;

  // What the queues are given from now on starts after what `stream`, a cudaStream_t of the caller,
  // has been given until now; null is CUDA's default stream.
  virtual Status wait_for_stream(void* stream) = 0;
  // The reverse: the stream goes on after what the queues have been given until now.
  virtual Status let_stream_wait(void* stream) = 0;

  // The stream (a cudaStream_t) of the task that runs on this thread; null outside a task.
  static void* current_stream();

  // Whether this thread's task is being recorded (Queue::record_segment) instead of run.
  static bool is_recording();
  // Tells the recording that the task starts something that is not in its final form.
  static void postpone_recording();
};

}  // namespace hetero::backend
