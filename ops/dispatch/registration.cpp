// Registration of everything on the PrivateUse1 key.
//
// 1. operators with code of their own (basic.cpp, special.cpp), 2. typed rows, 3. the catch-all,
//    explicitly for operators whose default
// kernel would take them apart (a structured operator becomes empty + op.out) and as the fallback
// for all others.

#include "ops/dispatch/registration.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/dispatch/basic.h"
#include "ops/dispatch/catch_all.h"
#include "ops/dispatch/encoder_layer.h"
#include "ops/dispatch/special.h"
#include "ops/dispatch/traits.h"
#include "ops/kernels/boxed.h"
#include "ops/record/op_info.h"
#include "ops/shapes/node_check.h"
#include "ops/table/operator_row.h"

namespace hetero::ops {
namespace {

using Overloads = std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_of_options(const c10::Argument& argument) {
  const std::string& name = argument.name();
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory";
}

// Whether `filling` writes into given tensors what `making` makes: the same arguments, and its
// results.
bool fills_for(const c10::FunctionSchema& making, const c10::FunctionSchema& filling) {
  size_t outs = 0, next = 0;
  const auto& made = making.arguments();
  for (const c10::Argument& argument : filling.arguments()) {
    if (writes(argument)) {
      ++outs;
      continue;
    }
    while (next < made.size() && is_of_options(made[next]) && made[next].name() != argument.name()) ++next;
    if (next == made.size() || made[next].name() != argument.name() || *made[next].type() != *argument.type())
      return false;
    ++next;
  }
  while (next < made.size() && is_of_options(made[next])) ++next;
  return next == made.size() && outs == making.returns().size();
}

// Whether the operator's default kernel makes empty tensors, for another overload with a kernel of
// the CPU to fill. Random operators have other numbers that way.
bool makes_for_filling(const c10::OperatorHandle& handle, const Overloads& overloads) {
  const c10::FunctionSchema& schema = handle.schema();
  if (!handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) return false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr || argument.type()->str().find("Generator") != std::string::npos) return false;
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr) return false;
  }
  return std::ranges::any_of(overloads.at(schema.name()), [&](const c10::OperatorHandle& other) {
    return other.hasKernelForDispatchKey(c10::DispatchKey::CPU) && fills_for(schema, other.schema());
  });
}

// Operators without a row whose default kernel would take them apart although the CPU has a kernel
// for the whole. A structured operator would become empty + op.out; others would compute by another
// formula than the CPU does.
void register_whole(torch::Library& library) {
  const std::vector<c10::OperatorHandle> operators = aten_operators();
  Overloads overloads;
  for (const c10::OperatorHandle& handle : operators) overloads[handle.operator_name().name].push_back(handle);
  for (const c10::OperatorHandle& handle : operators) {
    if (handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) || !has_default_kernel(handle)) continue;
    const std::string name = c10::toString(handle.operator_name());
    const bool whole = handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) || makes_for_filling(handle, overloads) ||
                       describe_operator(name).whole;
    if (!whole) continue;
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&catch_all>());
    enter_recorded(name);
  }
}

// How graph/ sees an operator that the catch-all records.
graph::OpTraits boxed_traits_of(const std::string& name) {
  graph::OpTraits traits = traits_of(name);
  add_boxed_kernel(traits);
  return traits;
}

}  // namespace

std::vector<c10::OperatorHandle> aten_operators() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorHandle> operators;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!is_aten(name.name)) continue;
    if (const auto handle = dispatcher.findSchema(name)) operators.push_back(*handle);
  }
  return operators;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  graph::op_table().set_resolver(&resolve_operator);
  set_boxed_traits(&boxed_traits_of);
  add_pointwise_rows(library);
  add_inplace_rows(library);
  add_matrix_rows(library);
  add_network_rows(library);
  add_random_rows();
  register_basic(library);
  register_special(library);
  register_encoder_layer(library);
  register_whole(library);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&catch_all>());
}

}  // namespace hetero::ops
