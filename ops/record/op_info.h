// OpInfo: what an operator's schema says of it - which arguments are read and written, which results are new - and what no schema
// says, by name.
//
// Thread safety: any thread. Entries are made once and live for ever.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/op.h"
#include "ops/settings/counters.h"
#include "ops/shapes/shape_rules.h"

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
  bool takes_cpu_tensors = false;    // has arguments that stay on the CPU: such calls run straight
  bool takes_cpu_indices = false;    // CPU index tensors are moved
  ShapeRule shape_rule = ShapeRule::kNone;
  SyncReason straight_reason = SyncReason::kNotRecordable;
};

// The entry of an operator; registers it in the op table on first use.
const OpInfo& op_info(const c10::OperatorHandle& handle);
const OpInfo& op_info(const char* name, const char* overload);

// Batch norm that updates and gives no statistics, other than its schema says.
bool is_norm_in_inference(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

// How the graph layer sees an operator, by name; op_table.cpp.
graph::OpTraits traits_of(const std::string& name);
// Whether the operator writes its first argument without reading it.
bool overwrites_first_argument(const std::string& name);

}  // namespace hetero::ops
