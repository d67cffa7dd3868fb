// Kernels of the tests are loops on the host. On an accelerator whose memory only its own kernels reach, a GPU, they run on copies: what they read comes to the
// host when the stream has come to them, and what they write goes back. `sim` hands out addresses that the host reaches.
//
// Thread safety: any thread.

#pragma once

#include "graph/op.h"

namespace hetero::graph::testing {

// Throws where the accelerator refuses, as it does while launches are recorded.
void call_where_it_lies(const Invocation& call, KernelFunction kernel);

template <KernelFunction kernel>
void anywhere(const Invocation& call) {
  call_where_it_lies(call, kernel);
}

}  // namespace hetero::graph::testing
