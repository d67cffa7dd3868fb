// The kernels of _scaled_dot_product_flash_attention_for_cpu and its backward. Our own
// (backend/cpu/kernels/attention.h) run the calls that they support.
//
// ATen's flash attention calls a BLAS for tiles of a few rows. On the one machine measured
// (AVX-512, no AMX) ours was faster forward for nearly every shape, also with grouped heads of
// queries. Backward it was 0.93 to 1.9 times as fast in float32, except for gradients of very few
// queries, which stay with ATen, and 1.6 to 9 times in 2-byte floats. So nothing is measured at run
// time. Outputs are laid out as the recorded windows say. logsumexp is ATen's, so our backward pass
// may follow ATen's forward pass, and the reverse.
//
// The stock kernels run every call with fusion off or config().verify, dropout, double, elements
// that are not dense along the last dimension, boolean masks, heads of keys that do not divide
// those of queries, and float32 gradients of few queries of many keys. Results differ from eager's
// in the last bits.
//
// Thread safety: as any kernel; several threads may run attention at once.

#pragma once

#include "graph/ir/op.h"

namespace hetero::ops {

// Runs the call. False, and nothing is done, where that is the stock kernel's.
bool run_attention(const graph::Invocation& invocation);
bool run_attention_backward(const graph::Invocation& invocation);

// How often ours have run.
struct AttentionCounts {
  int64_t forward = 0;
  int64_t backward = 0;
};
AttentionCounts attention_counts();

}  // namespace hetero::ops
