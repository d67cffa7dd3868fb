// Runs a node on a device without the CPU's kernels, a GPU: by PyTorch's own kernel for it.
//
// The kernel is called on alias tensors (kernel.h) over the device's memory, with the queue's
// stream as PyTorch's current one (connect_to_gpu). It runs in its `out=` variant if there is one,
// so results land in planned memory. Temporaries of the kernel come from PyTorch's own allocator.
//
// - If memory runs out, this device's allocator and PyTorch's release what they keep, and the
//   kernel is called once more.
// - If the kernel raises anything else, it cannot compute the call (a dtype, an argument that must
//   be on the CPU), or the CPU would raise as well. So the CPU's kernel computes it on copies of
//   the operands: results and errors are the CPU's. explain() counts that (Counters::rescues).
// - Attention is recorded as the CPU's operator. Its call for the device is written here.
// - Random operators have no kernel here: their numbers are the CPU's on every device.
//
// On a simulated accelerator without SimOptions::host_kernels, all this runs with the CPU's kernels
// in place of CUDA's, for tests.
//
// Thread safety: any thread.

#pragma once

#include <c10/core/Storage.h>

#include "graph/ir/op.h"
#include "ops/tensor/storage.h"

namespace hetero::ops {

// Completes the traits of an operator by its kernel for such devices, where PyTorch has one.
void add_device_kernel(graph::OpTraits& traits);

// Tells graph/ir/kernel_settings.h what the kernels look at.
void connect_kernel_settings();

// From now on the stream of a queue is PyTorch's current one while the queue's tasks start kernels.
// Errors: kDevice where torch has no CUDA. Does nothing in a build without it.
Status connect_to_gpu();

// ---- tensors of the caller's on the GPU that is the accelerator

// The memory of a CUDA storage as a block of the accelerator; the storage lives as long as the
// block.
backend::Block borrow_gpu_storage(c10::Storage storage);
c10::Storage make_gpu_storage(size_t bytes);
// Copies a settled storage's bytes, wherever they are, to a CUDA storage, where they are not there
// already; they are there when it returns.
void copy_to_gpu(HeteroStorage* storage, const c10::Storage& to);
// Waits for what was submitted to PyTorch's current stream.
void wait_for_gpu();

}  // namespace hetero::ops
