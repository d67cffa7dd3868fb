// rewrite_slice: makes a faster program of a slice before a plan is looked for.
//
//   norms       A batch norm in inference that alone reads the result of a convolution becomes
//               hetero::convolution_norm (ops/convolution/convolution.h). The convolution stays,
//               without readers, so that nodes and their numbers keep their places; planning drops
//               it.
//   layouts     graph::use_channels_last
//
// Both change last bits, so the caller does it only where results may differ in them, and not for
// machines with an accelerator, whose kernels were not measured on such programs. Norms are not
// folded into weights that others may write unseen, nor where config().packed_bytes has no room for
// them. If that changes later, values stay right, and kept plans stay what they are.
//
// Thread safety: the executor lock.

#pragma once

#include "graph/ir/window.h"
#include "ops/record/trace_slice.h"

namespace hetero::ops {

// What was recorded goes to slice.recorded where something changes. `windows` is the table of the
// slice's windows; null for the recorder's.
void rewrite_slice(TraceSlice& slice, graph::WindowTable* windows);

}  // namespace hetero::ops
