// A CUDA stream of the caller's, and the work of the accelerator: which waits for which.
//
// Thread safety: any thread. Needs no CUDA header.

#pragma once

#include "backend/base/status.h"

namespace hetero::ops {

// What the accelerator is given from now on starts after what `stream`, a cudaStream_t, has been
// given until now. Errors: kUsage where the accelerator is no GPU; kDevice.
Status wait_for_stream(void* stream);
// The reverse. Errors: the same.
Status let_stream_wait(void* stream);

}  // namespace hetero::ops
