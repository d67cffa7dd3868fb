#include "ops/record/op_info.h"

#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "ops/kernels/boxed.h"
#include "ops/record/recorder.h"

namespace hetero::ops {
namespace {

// Operators whose results depend on data but whose Meta kernels do not say so.
bool always_straight(const std::string& name) {
  static const std::vector<std::string> names = {
      "aten::_unique2",
      "aten::unique_dim",
      "aten::unique_consecutive",
      "aten::_pack_padded_sequence",
      "aten::_pad_packed_sequence",
  };
  return std::find(names.begin(), names.end(), name.substr(0, name.find('.'))) != names.end();
}

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
  if (overwrites_first_argument(name)) access[0] = graph::Access::kWrite;
  if (returns.empty() && std::count(access.begin(), access.end(), graph::Access::kRead) == std::ssize(access)) {
    // Whatever it does, it does not do to a tensor.
    records = false;
  }
  if (name == "aten::native_batch_norm") {
    // In training it updates the running statistics, which its schema does not say.
    access[3] = access[4] = graph::Access::kUpdate;
  }
  // The numbers of optimizer steps change from step to step; no shape depends on them.
  numbers_decide_shape = !name.starts_with("aten::_foreach_") && !name.starts_with("aten::_fused_adam") &&
                         !name.starts_with("aten::_fused_sgd");
  seeded = generator_argument < 0 && op.hasTag(at::Tag::nondeterministic_seeded);
  if (op.hasTag(at::Tag::dynamic_output_shape) || always_straight(name)) {
    records = false;
    straight_reason = SyncReason::kDataDependentShape;
  } else if (op.hasTag(at::Tag::data_dependent_output)) {
    records = false;
    straight_reason = SyncReason::kDataDependentValue;
  }
  takes_cpu_tensors = name.starts_with("aten::_pack_padded_sequence") ||
                      name.starts_with("aten::_pad_packed_sequence") || name.starts_with("aten::_ctc_loss");
  takes_cpu_indices = name.starts_with("aten::index.Tensor") || name.starts_with("aten::index_put") ||
                      name.starts_with("aten::_index_put_impl") || name.starts_with("aten::_unsafe_index");
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
  if (info->id == graph::kNoOp || graph::op_table()[info->id].kernel == &boxed_kernel) {
    graph::OpTraits traits = traits_of(info->name);
    traits.kernel = &boxed_kernel;
    traits.self = info.get();
    info->id = graph::op_table().add(std::move(traits));
  } else {
    info->typed = true;
    info->numbers_decide_shape = false;
  }
  const bool has_out = std::any_of(handle.schema().arguments().begin(), handle.schema().arguments().end(),
                                   [](const c10::Argument& argument) { return argument.is_out(); });
  if (info->name.starts_with("aten::") && !has_out) {
    info->shape_rule = shape_rule_of(info->name, graph::op_table()[info->id].op_class);
  }
  return *info;
}

bool is_norm_in_inference(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  constexpr size_t kTraining = 5;
  return info.name == "aten::native_batch_norm" && !arguments[kTraining].toBool();
}

const OpInfo& op_info(const char* name, const char* overload) {
  return op_info(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

}  // namespace hetero::ops
