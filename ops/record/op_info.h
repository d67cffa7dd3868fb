// OpInfo: what an operator's schema says of it (which arguments are read and written, which results
// are new), and its row, which says what no schema says.
//
// Thread safety: any thread. Entries are made once and live for ever.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <string_view>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/op.h"
#include "ops/settings/counters.h"
#include "ops/table/operator_row.h"

namespace hetero::ops {

// An operator as its schema describes it. Made once for each operator, kept for ever.
struct OpInfo {
  enum class Return : uint8_t { kTensor, kTensorList, kArgument, kView, kOther };

  explicit OpInfo(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  c10::OperatorName operator_name;
  std::string name;  // "aten::add.Tensor"
  graph::OpId id = 0;
  std::vector<graph::Access> access;  // per argument
  std::vector<bool> is_number;        // per argument: declared Scalar
  std::vector<bool> is_size;          // per argument: declared SymInt, or a list of them
  std::vector<Return> returns;
  std::vector<int> returned_argument;  // per return: for kArgument, which
  int generator_argument = -1;
  bool seeded = false;               // draws random numbers without a Generator argument
  bool views = false;                // some return is a view of an argument
  bool records = true;               // false: always straight
  bool typed = false;                // it has a typed row
  bool numbers_decide_shape = true;  // numbers are part of the key
  OperatorRow row;
  ShapeRule shape_rule = ShapeRule::kNone;
  SyncReason straight_reason = SyncReason::kNotRecordable;
};

// The entry of an operator; registers it in the op table on first use.
const OpInfo& op_info(const c10::OperatorHandle& handle);
const OpInfo& op_info(const char* name, const char* overload);

// Whether the call does not make the hidden writes of its operator, as batch norm in inference. It
// then gives no statistics, although its schema says so.
bool makes_no_hidden_writes(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

// Whether an operator is PyTorch's own, not a library's. Its kernels for all devices are
// compositions only.
bool is_own(std::string_view name);

// Whether calls of the operator on the device become nodes: by a row, by the catch-all, or by the
// fallback, which gets operators that are not decomposed. Such an operator reads, makes and writes
// tensors only.
bool is_recorded(const OpInfo& info);
// Notes an operator whose kernel of the device gives calls to the catch-all.
void enter_recorded(std::string name);

// Whether the operator has a kernel that computes it by others, on any device.
bool has_default_kernel(const c10::OperatorHandle& handle);

// Makes the traits of an operator without a typed row, except OpTraits::self. To be set before the
// first call of op_info().
using BoxedTraits = graph::OpTraits (*)(const std::string& name);
void set_boxed_traits(BoxedTraits traits_of);

}  // namespace hetero::ops
