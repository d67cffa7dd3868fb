#include "ops/record/op_info.h"

#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ops/record/recorder.h"

namespace hetero::ops {
namespace {

std::unordered_set<std::string>& recorded_operators() {
  static auto* const names = new std::unordered_set<std::string>;
  return *names;
}

constinit BoxedTraits boxed_traits = nullptr;

bool declared_size(const c10::TypePtr& declared) {
  c10::TypePtr type = declared;
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  return type->kind() == c10::TypeKind::SymIntType;
}

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op) : handle(op), operator_name(op.operator_name()) {
  const c10::FunctionSchema& schema = op.schema();
  name = schema.operator_name().name;
  if (!schema.operator_name().overload_name.empty()) name += "." + schema.operator_name().overload_name;
  row = describe_operator(name);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    // An `out` is overwritten; any other written argument is read first.
    access.push_back(!written            ? graph::Access::kRead
                     : argument.is_out() ? graph::Access::kWrite
                                         : graph::Access::kUpdate);
    c10::TypePtr type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
    is_number.push_back(type->kind() == c10::TypeKind::NumberType);
    is_size.push_back(declared_size(argument.real_type()));
    if (type->kind() == c10::TypeKind::GeneratorType) generator_argument = static_cast<int>(i);
    if (type->kind() == c10::TypeKind::StorageType || type->kind() == c10::TypeKind::ClassType ||
        type->kind() == c10::TypeKind::StreamObjType || type->kind() == c10::TypeKind::QSchemeType) {
      records = false;
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    const bool tensor = result.type()->isSubtypeOf(*c10::TensorType::get());
    const bool list = result.type()->isSubtypeOf(*c10::ListType::ofTensors());
    const c10::AliasInfo* alias = result.alias_info();
    int argument = -1;
    if (alias != nullptr) {
      for (size_t i = 0; i < schema.arguments().size() && argument < 0; ++i) {
        const c10::AliasInfo* other = schema.arguments()[i].alias_info();
        if (other != nullptr && *other == *alias) argument = static_cast<int>(i);
      }
    }
    returned_argument.push_back(argument);
    if (!tensor && !list) {
      returns.push_back(Return::kOther);
      records = false;
      straight_reason = SyncReason::kDataDependentValue;
    } else if (alias != nullptr && alias->isWrite()) {
      returns.push_back(Return::kArgument);
    } else if (alias != nullptr) {
      returns.push_back(Return::kView);
      views = true;
    } else {
      returns.push_back(tensor ? Return::kTensor : Return::kTensorList);
    }
  }
  if (row.overwrites) access[0] = graph::Access::kWrite;
  if (returns.empty() && std::count(access.begin(), access.end(), graph::Access::kRead) == std::ssize(access)) {
    // Whatever it does, it does not do to a tensor.
    records = false;
  }
  for (size_t i = 0; i < access.size(); ++i) {
    if (row.hidden_writes.arguments.has(i)) access[i] = graph::Access::kUpdate;
  }
  numbers_decide_shape = !row.any_numbers;
  seeded = generator_argument < 0 && op.hasTag(at::Tag::nondeterministic_seeded);
  if (op.hasTag(at::Tag::dynamic_output_shape) || row.dynamic_shape) {
    records = false;
    straight_reason = SyncReason::kDataDependentShape;
  } else if (op.hasTag(at::Tag::data_dependent_output)) {
    records = false;
    straight_reason = SyncReason::kDataDependentValue;
  }
}

const OpInfo& op_info(const c10::OperatorHandle& handle) {
  // Keyed by the address of the operator's name, which is unique while the operator exists.
  static auto* infos = new std::unordered_map<const void*, std::unique_ptr<OpInfo>>;
  static auto* retired = new std::vector<std::unique_ptr<OpInfo>>;
  static auto* mutex = new std::shared_mutex;
  const c10::OperatorName& operator_name = handle.operator_name();
  const auto matches = [&](const OpInfo& info) {
    return info.access.size() == handle.schema().arguments().size() &&
           info.returns.size() == handle.schema().returns().size() && info.name.starts_with(operator_name.name) &&
           info.name.size() == operator_name.name.size() +
                                   (operator_name.overload_name.empty() ? 0 : operator_name.overload_name.size() + 1);
  };
  {
    std::shared_lock lock(*mutex);
    const auto found = infos->find(&operator_name);
    if (found != infos->end() && matches(*found->second)) return *found->second;
  }
  std::unique_lock lock(*mutex);
  std::unique_ptr<OpInfo>& info = (*infos)[&operator_name];
  if (info != nullptr && matches(*info)) return *info;
  if (info != nullptr) retired->push_back(std::move(info));
  info = std::make_unique<OpInfo>(handle);
  Locked recording(recorder().mutex());
  info->id = graph::op_table().find(info->name);
  if (info->id == graph::kNoOp || graph::op_table()[info->id].self != nullptr) {
    graph::OpTraits traits = boxed_traits(info->name);
    traits.self = info.get();
    info->id = graph::op_table().add(std::move(traits));
  } else {
    info->typed = true;
    info->numbers_decide_shape = false;
  }
  const bool has_out = std::any_of(handle.schema().arguments().begin(), handle.schema().arguments().end(),
                                   [](const c10::Argument& argument) { return argument.is_out(); });
  if (is_aten(info->name) && !has_out) {
    const bool broadcasts = graph::op_table()[info->id].op_class == graph::OpClass::kPointwise;
    info->shape_rule =
        info->row.shape_rule == ShapeRule::kNone && broadcasts ? ShapeRule::kBroadcast : info->row.shape_rule;
  }
  return *info;
}

bool makes_no_hidden_writes(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  const HiddenWrites& hidden = info.row.hidden_writes;
  return hidden.some() && !arguments[hidden.flag].toBool();
}

bool is_own(std::string_view name) { return is_aten(name) || name.starts_with("prims::"); }

bool has_default_kernel(const c10::OperatorHandle& handle) {
  for (const auto key : {c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
                         c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeImplicitAutograd}) {
    if (handle.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

bool is_recorded(const OpInfo& info) {
  if (info.views) return false;
  if (info.typed) return true;
  if (!info.records) return false;
  return info.row.recorded || recorded_operators().contains(info.name) ||
         // A capture takes composed operators of libraries whole: see opaque.h.
         (!info.handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
          (!has_default_kernel(info.handle) || !is_own(info.name))) ||
         // prefer_cpu.h gives these to the catch-all.
         (!is_own(info.name) && has_default_kernel(info.handle) &&
          info.handle.hasKernelForDispatchKey(c10::DispatchKey::CPU));
}

void enter_recorded(std::string name) { recorded_operators().insert(std::move(name)); }

void set_boxed_traits(BoxedTraits traits_of) { boxed_traits = traits_of; }

const OpInfo& op_info(const char* name, const char* overload) {
  return op_info(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

}  // namespace hetero::ops
