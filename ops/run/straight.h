// Straight calls: calls that run at once, on CPU tensors over the same bytes, after what they need
// has run.
//
// They are calls that cannot be recorded: operators without a Meta kernel, with data-dependent
// shapes, or with results that are not tensors, and calls that fail. The CPU kernel then raises the
// error that eager would have raised, on the same line.
//
// Thread safety: any thread; never call while holding the recorder's lock.

#pragma once

#include <ATen/core/stack.h>

#include "ops/record/call.h"
#include "ops/record/op_info.h"
#include "ops/settings/counters.h"

namespace hetero::ops {

// Runs the call whose arguments are on top of the stack, and replaces them by its results.
void run_straight(const OpInfo& info, torch::jit::Stack* stack, SyncReason reason);
// Runs the call with the random numbers that were already drawn for it.
void run_drawn(const OpInfo& info, torch::jit::Stack* stack, RandomState random, SyncReason reason);

}  // namespace hetero::ops
