// Registration of everything on the PrivateUse1 key.
//
// 1. operators with code of their own (basic.cpp, special.cpp), 2. typed rows, 3. the catch-all, explicitly for operators whose default
// kernel would take them apart (a structured operator becomes empty + op.out) and as the fallback for all others.

#include "ops/op_table.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_map>
#include <unordered_set>

#include "ops/basic.h"
#include "ops/catch_all.h"
#include "ops/special.h"

namespace hetero::ops {
namespace {

const std::unordered_map<std::string, graph::OpClass>& class_rows() {
  using graph::OpClass;
  static const auto* rows = new std::unordered_map<std::string, OpClass>{
#define HETERO_CLASS_ROWS
#define CLASS(name, op_class) {name, OpClass::op_class},
#include "ops/op_table.def"
  };
  return *rows;
}

// Structured operators without a row: their functional form has a kernel that allocates and calls the out form. One node is better.
void register_structured(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto handle = dispatcher.findSchema(name);
    if (!handle.has_value()) continue;
    if (!handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        !handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
        handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&catch_all>());
  }
}

}  // namespace

graph::OpTraits traits_of(const std::string& name) {
  graph::OpTraits traits;
  traits.name = name;
  traits.brings_memory = true;
  const auto row = class_rows().find(name);
  if (row != class_rows().end()) traits.op_class = row->second;
  return traits;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  add_pointwise_rows(library);
  add_inplace_rows(library);
  add_matrix_rows(library);
  add_network_rows(library);
  add_random_rows();
  register_basic(library);
  register_special(library);
  register_structured(library);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&catch_all>());
}

}  // namespace hetero::ops
