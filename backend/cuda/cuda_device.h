// CudaDevice: an NVIDIA GPU as a Device, over the CUDA runtime.
//
// Each queue (see QueueKind) is a stream; Events are cudaEvents. Memory comes from a
// CachingAllocator over cudaMalloc, which releases its cache and asks once more before it reports
// that memory ran out.
//
// Tasks are not host functions on the stream: cudaLaunchHostFunc forbids CUDA calls, and every
// kernel would wait for a host thread. Instead `launch` calls task.run at once on the calling
// thread, with the queue's stream made current for that time, and the task enqueues its kernels on
// the stream. Making a stream current is the business of the library whose kernels run, so ops/
// supplies it: see set_stream_hook.
//
// Segments are CUDA graphs, captured from the tasks on a stream that nothing else uses and launched
// on the queue's. What fails in a capture, such as a call that waits for the GPU or takes memory,
// ends it, and nothing else notices. Fused kernels that are still interpreted are not recorded
// before their code is there.
//
// Copies are asynchronous. Large host memory that is copied again is page-locked where it lies
// (host_ranges.h). Where the host memory is pageable they go, in pieces, through a pinned
// StagingPool, and the copy between the two host buffers is a host function on the stream, so that
// it has its place in the queue's order: bytes that earlier work is still to write to the source
// are not read too early. copy() blocks only while all staging buffers are under way. A batch of
// copies is one cudaMemcpyBatchAsync where runtime and driver have it (CUDA 12.8), of pageable
// memory through one staging buffer.
//
// Fused kernels are interpreted and compiled at run time, with NVRTC where the machine has it
// (engine.h).
//
// Thread safety: any thread. In a forked child the CUDA runtime is unusable: every call fails with
// kDevice, and Blocks leak. Ownership: a Block is released only when no submitted work uses it. The
// registry's device is leaked; destroying another one synchronizes with the GPU.
//
// Compiled only where the CMake option HETERO_CUDA is on. Including this header needs no CUDA
// header.

#pragma once

#include <memory>
#include <string>

#include "backend/device/device.h"

namespace hetero::backend {

// Makes `stream` (a cudaStream_t) the calling thread's current stream for the kernels that it
// enqueues; null restores what was current before the last call with a stream. Called before and
// after every task.
using StreamHook = void (*)(void* stream);

// Sets the hook; null for none, and tasks then find their stream through
// CudaDevice::current_stream.
void set_stream_hook(StreamHook hook);

// Has somebody else's allocator give back to the GPU what it only keeps. Called when there is no
// memory, before asking once more.
using MemoryHook = void (*)();
void set_memory_hook(MemoryHook hook);

class CudaDevice : public Device {
 public:
  // The GPU with this ordinal. Errors: kDevice, "no CUDA device ..." where there is no such GPU or
  // no driver.
  static Result<std::unique_ptr<CudaDevice>> create(int ordinal = 0);

  // What was measured on another GPU, or under another driver, is not true of this one: "NVIDIA
  // H200, driver 12040".
  virtual std::string model() const = 0;

  // The stream (a cudaStream_t) of the task that runs on this thread; null outside of a task.
  static void* current_stream();

  // Whether this thread's task is recorded (Queue::record_segment), and not run.
  static bool is_recording();
  // Says so to the recording: something that the task starts is not in its final form.
  static void postpone_recording();
};

}  // namespace hetero::backend
