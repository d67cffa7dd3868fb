// Registration of everything on the PrivateUse1 key.
//
// 1. operators with code of their own (basic.cpp, special.cpp), 2. typed rows, 3. the catch-all, explicitly for operators whose default
// kernel would take them apart (a structured operator becomes empty + op.out) and as the fallback for all others.

#include "ops/dispatch/op_table.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_map>
#include <unordered_set>

#include "ops/dispatch/basic.h"
#include "ops/dispatch/catch_all.h"
#include "ops/kernels/device_kernel.h"
#include "ops/fused/lower.h"
#include "ops/shapes/node_check.h"
#include "ops/record/op_info.h"
#include "ops/dispatch/special.h"

namespace hetero::ops {
namespace {

const std::unordered_map<std::string, graph::OpClass>& class_rows() {
  using graph::OpClass;
  static const auto* rows = new std::unordered_map<std::string, OpClass>{
#define HETERO_CLASS_ROWS
#define CLASS(name, op_class) {name, OpClass::op_class},
#include "ops/dispatch/op_table.def"
  };
  return *rows;
}

const std::unordered_set<std::string>& overwrites_rows() {
  static const auto* rows = new std::unordered_set<std::string>{
#define HETERO_OVERWRITES_ROWS
#define OVERWRITES(name) name,
#include "ops/dispatch/op_table.def"
  };
  return *rows;
}

bool has_default_kernel(const c10::OperatorHandle& handle) {
  for (const auto key : {c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
                         c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeImplicitAutograd}) {
    if (handle.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

// Those of register_whole, and those of enter_recorded.
std::unordered_set<std::string>& whole_operators() {
  static auto* names = new std::unordered_set<std::string>;
  return *names;
}

// Operators without a row whose default kernel would take them apart although the CPU has a kernel for the whole. A structured
// operator would become empty + op.out; others would compute by another formula than the CPU does.
void register_whole(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto handle = dispatcher.findSchema(name);
    if (!handle.has_value()) continue;
    if (!handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) || !has_default_kernel(*handle) ||
        handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&catch_all>());
    whole_operators().insert(full);
  }
}

}  // namespace

graph::OpTraits traits_of(const std::string& name) {
  graph::OpTraits traits;
  traits.name = name;
  traits.brings_memory = true;
  traits.is_foreign = !is_own(name) && !name.starts_with("hetero::");
  traits.check = &check_node;
  traits.has_draw = &has_draw;
  if (const LowerRow* row = lowering_of(name)) {
    traits.lower = row->function;
    traits.has_tail = row->tail;
  }
  const auto row = class_rows().find(name);
  if (row != class_rows().end()) traits.op_class = row->second;
  add_device_kernel(traits);
  return traits;
}

void enter_recorded(const char* name) { whole_operators().insert(name); }

bool is_own(const std::string& name) { return name.starts_with("aten::") || name.starts_with("prims::"); }

bool is_recorded(const OpInfo& info) {
  if (info.views) return false;
  if (info.typed) return true;
  if (!info.records) return false;
  return whole_operators().count(info.name) != 0 ||
         (!info.handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
          (!has_default_kernel(info.handle) || !is_own(info.name)));  // those a capture takes whole: opaque.h
}

bool overwrites_first_argument(const std::string& name) { return overwrites_rows().count(name) != 0; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  graph::op_table().set_resolver(&resolve_operator);
  add_pointwise_rows(library);
  add_inplace_rows(library);
  add_matrix_rows(library);
  add_network_rows(library);
  add_random_rows();
  register_basic(library);
  register_special(library);
  register_whole(library);
}

// The device holds strided tensors. Whatever would make another one there ends in one sentence.
[[noreturn]] void refuse_layout(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "hetero: ", handle.operator_name().name,
                              " needs a sparse, quantized or nested tensor, which the hetero device does not hold; "
                              "keep it on the CPU, or use .to_dense() or .to_padded_tensor()");
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&catch_all>());
}

}  // namespace hetero::ops
