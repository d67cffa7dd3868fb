// The catch-all: records any operator without code of its own.
//
// The schema tells which arguments are read and written, and which results are new (op_info.h). A
// call is encoded (boxed.h). The meta cache gives the outputs' windows (meta_cache.h), or
// first_sight.h finds them. A node is then appended. A call that cannot be recorded runs at once
// (straight.h).
//
// Thread safety: any thread.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

#include "ops/record/meta_cache.h"
#include "ops/record/op_info.h"

namespace hetero::ops {

// Records or runs the call whose arguments are on top of the stack, and replaces them by its
// results.
void catch_all(const c10::OperatorHandle& handle, torch::jit::Stack* stack);
void record_boxed(const OpInfo& info, torch::jit::Stack* stack);

// The results of a call by the way that it takes without code of the device for it. The operator's
// function in ATen would come back to that code.
template <typename Op>
torch::jit::Stack take_usual_way(torch::jit::Stack stack) {
  static const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  catch_all(handle, &stack);
  return stack;
}

// Tensors made for a cache entry, appended as outputs of a node. REQUIRES: the recorder lock.
void make_outputs(const MetaEntry& entry, std::vector<at::Tensor>& all, std::vector<at::Tensor>& defined);

}  // namespace hetero::ops
