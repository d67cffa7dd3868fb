// OfferedMemory: a kernel of PyTorch that makes its own result makes it in memory that is there.
//
// Some of oneDNN's kernels have no variant that writes into a given tensor, so their results were
// copied to where the program wants them. While an offer lives, the first allocation of exactly its
// bytes on its thread gets the offered memory. A kernel that takes it for something else is right
// as well: its result lies elsewhere then, and is copied as before (KernelTensors::deliver).
//
//   OfferedMemory offer(place.mutable_data_ptr(), place.nbytes());
//   at::Tensor result = convolve(...);   // may be in `place`
//
// The process's CPU allocator is wrapped for it when the device starts; other allocations cost one
// more look at a thread-local variable.
//
// REQUIRES: the kernel keeps no temporary beyond its call, and has one result.
// Thread safety: any thread; an offer is of the thread that made it.

#pragma once

#include <cstddef>

namespace hetero::ops {

// Wraps the CPU allocator. REQUIRES: called once, before other threads allocate.
void register_offers();

class OfferedMemory {
 public:
  OfferedMemory(void* data, size_t bytes);
  ~OfferedMemory();
  OfferedMemory(const OfferedMemory&) = delete;
  OfferedMemory& operator=(const OfferedMemory&) = delete;
};

}  // namespace hetero::ops
