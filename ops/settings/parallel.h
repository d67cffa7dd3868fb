// Connects backend/'s parallel_for and worker threads to helpers of the calling thread, or while
// OpenMP's threads keep their cores to those.
//
// ATen divides sums by the number of threads. So a device's worker thread must use as many as the
// thread that flushes, or results would differ in the last bits.

#pragma once

namespace hetero::ops {

void connect_thread_pool();
// The calling thread is about to run a program: its number of threads is the one to use.
void choose_thread_count();
// On a worker thread of a device, takes over the chosen number; elsewhere does nothing.
void follow_thread_count();

// Kernels of PyTorch, oneDNN or a BLAS are about to run. Their threads are OpenMP's, and wait for
// the next such kernel with their cores for some milliseconds. As long, loops of ours run on them,
// too: helpers (backend/threads/helpers.h) would take the cores from them.
void begin_openmp();
void end_openmp();

class OpenMpScope {
 public:
  OpenMpScope() { begin_openmp(); }
  ~OpenMpScope() { end_openmp(); }
  OpenMpScope(const OpenMpScope&) = delete;
};

// Sets the number of threads of the calling thread's parallel regions, whatever
// at::set_num_threads() was told. Costs nothing if nothing changes.
void use_threads_here(int threads);

// Autograd would run the device's backward passes on a thread of its own. It would have a second
// pool of OpenMP threads, whose threads and the first pool's take the cores from each other, and it
// would sum gradients in another order than the CPU's. From now on, those that the calling thread
// begins run on it, as the CPU's do: torch.autograd.set_multithreading_enabled(False). Where the
// program enables it again, that holds. Said once on each thread, as soon as the setting would
// stay: torch.inference_mode() brings back what was before.
inline constinit thread_local bool backward_is_here = false;
void try_to_keep_backward_here();
inline void keep_backward_here() {
  if (!backward_is_here) [[unlikely]]
    try_to_keep_backward_here();
}

// If the program has backward passes run on a thread of autograd's, a kernel may have to run there.
// The thread would keep its pool, and with more threads than processors, OpenMP puts all pools to
// sleep between parallel regions. So the pool is released when the scope ends.
class KernelScope {
 public:
  KernelScope() = default;
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
};

}  // namespace hetero::ops
