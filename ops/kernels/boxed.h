// Boxed calls: encodes arguments on a stack as a Call, and decodes them when the node runs.
//
// Thread safety: any thread.

#pragma once

#include <ATen/core/List.h>
#include <ATen/core/stack.h>

#include <utility>

#include "graph/ir/op.h"
#include "ops/kernels/kernel.h"
#include "ops/record/call.h"
#include "ops/record/op_info.h"

namespace hetero::ops {

inline c10::ArrayRef<c10::IValue> arguments_of(const OpInfo& info, const torch::jit::Stack& stack) {
  return torch::jit::last(stack, info.access.size());
}

// Applies `replace` to every tensor in the values, inside lists too.
template <typename Replace>
void map_tensors(c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = replace(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? replace(tensor) : tensor);
    }
    value = std::move(list);
  } else if (value.isList() &&
             value.type()->castRaw<c10::ListType>()->getElementType()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isNone() || !element.toTensor().defined()) {
        list.push_back(std::nullopt);
      } else {
        list.push_back(replace(element.toTensor()));
      }
    }
    value = std::move(list);
  }
}

// Shows every tensor of a call, with the number of its argument.
template <typename Visit>
void visit_tensors(c10::ArrayRef<c10::IValue> arguments, const Visit& visit) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue copy = arguments[i];
    map_tensors(copy, [&](const at::Tensor& tensor) {
      visit(i, tensor);
      return tensor;
    });
  }
}

// Writes the arguments down; false when there is one that cannot be recorded. REQUIRES: the
// recorder lock.
bool encode(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, Call& call, RandomState random);

// Draws what a random call needs, before anything can fail.
RandomState draw(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

// For a tensor that is neither on hetero nor a zero-dim CPU tensor.
[[noreturn]] void raise_mixed_devices(const at::Tensor& foreign);

// Runs a node of an operator that has no typed kernel.
void boxed_kernel(const graph::Invocation& invocation);

// The arguments of a node, on alias tensors.
torch::jit::Stack arguments_of(const c10::FunctionSchema& schema, Decoder& decoder, KernelTensors& tensors);

// Calls an operator on the node's arguments, and makes its results the node's. `out`, where not
// null, is its variant that writes what it makes into given memory.
// REQUIRES: within Isolated.
void call_operator(const graph::Invocation& invocation, const OpInfo& info, const c10::OperatorHandle& handle,
                   const c10::OperatorHandle* out);
// The operator may have been removed since (torch.library); aten's never are.
c10::OperatorHandle handle_of(const OpInfo& info);

// The first result of an operator that has no function in ATen.
inline c10::IValue call_boxed(const c10::OperatorHandle& handle, torch::jit::Stack stack) {
  handle.callBoxed(stack);
  return std::move(stack.front());
}

}  // namespace hetero::ops
