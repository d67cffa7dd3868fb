// Runs a node of the graph by a stock ATen kernel: alias tensors over the operands' bytes, and the
// way back for results.
//
// Alias tensors come from a per-thread stack of reusable tensors, so a steady state allocates
// nothing. If a kernel keeps one, for instance by returning its input, its reference count shows
// that, and the slot gets a new tensor.
//
// Thread safety: everything belongs to the thread that runs the kernel.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "graph/ir/graph.h"

namespace hetero::ops {

// While it lives, the dispatcher goes straight to backend kernels: no autograd, autocast, functorch
// or Python modes, whatever the flushing thread is in the middle of.
class Isolated {
 public:
  // What is about to run: kernels of PyTorch, whose threads are OpenMP's, or loops of ours only.
  enum class Threads : uint8_t { kOpenMp, kOurs };
  explicit Isolated(Threads threads = Threads::kOpenMp);
  ~Isolated();
  Isolated(const Isolated&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
  const Threads threads_;
};

class KernelTensors {
 public:
  explicit KernelTensors(const graph::Invocation& invocation);
  ~KernelTensors();
  KernelTensors(const KernelTensors&) = delete;

  // Where the operands are: the CPU, or what kernel_device() is for OpTraits::device_kernel.
  c10::Device device() const { return device_; }
  // A tensor over operand i. REQUIRES: data[i] is not null.
  const at::Tensor& operand(int i);
  // The same, but operands that are one window of one memory are one tensor, as they were for the
  // caller: kernels ask `out.is_same(self)` before they refuse overlapping memory.
  const at::Tensor& argument(int i);
  int first_output() const { return invocation_.node->operand_count - invocation_.node->output_count; }
  // True when output operand i has memory to write into.
  bool has_memory(int i) const { return invocation_.data[i] != nullptr; }

  // Makes `result` the value of output operand i. Takes its memory over if it is laid out as the
  // window says, and copies otherwise.
  void deliver(int i, at::Tensor result);

 private:
  const graph::Invocation& invocation_;
  const c10::Device device_;
  size_t base_;
};

// The device of tensors over the accelerator's memory, as PyTorch's kernels see them: CUDA, or the
// CPU for a simulated accelerator. REQUIRES: there is one.
c10::Device kernel_device();
// A tensor over operand memory that nobody else has, of `bytes` bytes.
at::Tensor bytes_at(void* data, int64_t bytes, c10::Device device);

}  // namespace hetero::ops
