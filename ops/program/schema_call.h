// SchemaCall: an operator chosen by name, with all arguments that its schema takes except the
// tensors.
//
// ComputeGraph (compute_graph.h) keeps one per node and calls it on stand-ins, more than once.
//
// Thread safety: a value type; immutable once made.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/program/graph_argument.h"

namespace hetero::ops {

class SchemaCall {
 public:
  using Arguments = std::vector<GraphArgument>;
  using Attributes = std::vector<std::pair<std::string, GraphArgument>>;

  // Takes the operator of that name whose schema takes the arguments. Raises a sentence where there
  // is none.
  SchemaCall(std::string_view name, const Arguments& arguments, const Attributes& attributes);
  // A call of `op` with the arguments of these calls, one after the other, without the first
  // argument of each but the first call. REQUIRES: check_fusion() of operator_fusion.h takes it.
  static SchemaCall joined(const std::string& op, const std::vector<SchemaCall>& calls);

  const std::string& name() const { return name_; }  // "aten::add.Tensor"
  // Whether it writes some of its arguments.
  bool writes() const { return op_->schema().is_mutable(); }
  // The first argument, if it is a tensor; else null.
  const GraphValue* first() const {
    return !slots_.empty() && slots_[0].kind == Slot::Kind::kTensor ? tensors_.data() : nullptr;
  }
  // The tensors among the arguments, in their order.
  const std::vector<GraphValue>& tensors() const { return tensors_; }
  // Calls it on these in their place; tensors that it makes of nothing are on `device`. The tensors
  // among the results, lists taken apart. Raises what it raises.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& tensors, c10::Device device) const;

 private:
  struct Slot {
    enum class Kind : uint8_t { kFixed, kDevice, kTensor, kTensors, kOptionalTensors };
    Kind kind = Kind::kFixed;
    c10::IValue fixed = {};
    std::vector<bool> given = {};  // of lists: which elements are tensors and not None
  };
  // "" where the schema takes the arguments, otherwise why not.
  std::string fill(const Arguments& arguments, const Attributes& attributes);
  bool fill(const c10::Argument& formal, const GraphArgument& given);
  bool fill_tensors(const c10::Type& type, const GraphArgument& given);

  std::optional<c10::OperatorHandle> op_;  // never none
  std::string name_;
  std::vector<Slot> slots_;
  std::vector<GraphValue> tensors_;
};

}  // namespace hetero::ops
