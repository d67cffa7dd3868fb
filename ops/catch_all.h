// The catch-all: how any operator without code of its own is recorded, and how its nodes run.
//
// From the schema it knows which arguments are read and which are written, and which returns are new. A call is encoded
// (call.h), the Meta kernel tells the outputs' windows once per distinct call (meta_cache.h), and a node is appended. An operator that
// cannot be recorded is run at once on CPU tensors over the same bytes ("straight"), after what it needs was settled: operators
// without a Meta kernel, with data-dependent shapes, with results that are no tensors, and calls that fail: the CPU kernel then raises
// the error that eager would have raised, on the same line.
//
// Thread safety: any thread.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "graph/op.h"
#include "ops/call.h"
#include "ops/meta_cache.h"

namespace hetero::ops {

// An operator as its schema describes it. Made once for each operator, kept for ever.
struct OpInfo {
  enum class Return : uint8_t { kTensor, kTensorList, kArgument, kView, kOther };

  explicit OpInfo(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  graph::OpId id = 0;
  std::vector<graph::Access> access;  // per argument
  std::vector<bool> is_number;        // per argument: declared Scalar
  std::vector<Return> returns;
  std::vector<int> returned_argument;  // per return: for kArgument, which
  int generator_argument = -1;
  bool seeded = false;               // draws random numbers without a Generator argument
  bool views = false;                // some return is a view of an argument
  bool records = true;               // false: always straight
  bool numbers_decide_shape = true;  // numbers are part of the key
  bool takes_cpu_tensors = false;    // has arguments that stay on the CPU: such calls run straight
  bool takes_cpu_indices = false;    // CPU index tensors are moved
  SyncReason straight_reason = SyncReason::kNotRecordable;
};

// The entry of an operator; registers it in the op table on first use.
const OpInfo& op_info(const c10::OperatorHandle& handle);
const OpInfo& op_info(const char* name, const char* overload);

// Records or runs the call whose arguments are on top of the stack, and replaces them by its results.
void catch_all(const c10::OperatorHandle& handle, torch::jit::Stack* stack);
void record_boxed(const OpInfo& info, torch::jit::Stack* stack);
// Runs the call at once.
void run_straight(const OpInfo& info, torch::jit::Stack* stack, SyncReason reason);

// Runs a node of an operator that has no typed kernel.
void boxed_kernel(const graph::Invocation& invocation);

// Tensors made for a cache entry, appended as outputs of a node. REQUIRES: the recorder lock.
void make_outputs(const MetaEntry& entry, std::vector<at::Tensor>& all, std::vector<at::Tensor>& defined);

// How the graph layer sees an operator, by name; op_table.cpp.
graph::OpTraits traits_of(const std::string& name);
// Whether the operator writes its first argument without reading it.
bool overwrites_first_argument(const std::string& name);

}  // namespace hetero::ops
