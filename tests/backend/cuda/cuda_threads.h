// What CUDA has and C++ lacks: a block of threads, for kernels that are compiled as plain C++.
// Threads are fibers that take turns at barriers.
//
//   #include "tests/backend/cuda/cuda_threads.h"
//   ...the kernel's text...
//   emulation::run(blocks, has_barriers, [&] { kernel(arguments); });
//
// Each translation unit has threads of its own; one kernel runs at a time. Kernels are hidden: a
// library's would otherwise be replaced by one of the same name in the program, with its threads.

#pragma once

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#define __global__ __attribute__((visibility("hidden")))
#define __shared__ static
#define __launch_bounds__(threads)
#define __grid_constant__
struct Index3 {
  unsigned x;
};
static Index3 threadIdx, blockIdx, gridDim;

namespace emulation {
constexpr unsigned kThreads = 256;
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done;
  int barriers;
};
static Fiber fibers[kThreads];
static ucontext_t scheduler;
static const std::function<void()>* body;
static void run_fiber() {
  (*body)();
  fibers[threadIdx.x].done = true;
  swapcontext(&fibers[threadIdx.x].context, &scheduler);
}
// The other threads come to the same barrier before this one goes on.
[[maybe_unused]] static void barrier() {
  const unsigned own = threadIdx.x;
  ++fibers[own].barriers;
  swapcontext(&fibers[own].context, &scheduler);
  threadIdx.x = own;
}
static void run_block(const std::function<void()>& work) {
  constexpr size_t kStack = 64 << 10;
  body = &work;
  for (Fiber& it : fibers) {
    if (!it.stack) it.stack.reset(new char[kStack]);
    it.done = false;
    it.barriers = 0;
    getcontext(&it.context);
    it.context.uc_stack.ss_sp = it.stack.get();
    it.context.uc_stack.ss_size = kStack;
    it.context.uc_link = nullptr;
    makecontext(&it.context, run_fiber, 0);
  }
  for (unsigned left = kThreads; left > 0;) {
    for (unsigned t = 0; t < kThreads; ++t) {
      if (fibers[t].done) continue;
      threadIdx.x = t;
      swapcontext(&scheduler, &fibers[t].context);
      left -= fibers[t].done;
    }
  }
  for (const Fiber& it : fibers) {
    if (it.barriers == fibers[0].barriers) continue;
    std::fprintf(stderr, "threads of a block do not meet at the same barriers\n");
    std::abort();
  }
}
static void run(unsigned blocks, bool has_barriers, const std::function<void()>& work) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    if (has_barriers) {
      run_block(work);
      continue;
    }
    for (threadIdx.x = 0; threadIdx.x < kThreads; ++threadIdx.x) work();
  }
}
}  // namespace emulation
#define __syncthreads() emulation::barrier()
#define __syncwarp() emulation::barrier()
