#include "ops/program/schema_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "graph/ir/window.h"
#include "ops/program/operator_fusion.h"

namespace hetero::ops {
namespace {

using Argument = GraphArgument;
using Value = GraphValue;
using c10::TypeKind;

template <typename T>
const T* get(const Argument& argument) {
  return std::get_if<T>(&argument.kind());
}

std::optional<int64_t> dtype_number(const std::string& name) {
  const graph::DType dtype = graph::parse_dtype(name);
  return dtype < 0 ? std::nullopt : std::optional<int64_t>(dtype);
}

template <typename T>
c10::IValue list_of(const std::vector<T>& numbers) {
  return c10::List<T>(c10::ArrayRef<T>(numbers));
}

// A list that schemas declare as `int[2]` may be given as one number.
std::optional<c10::IValue> integers(const c10::Argument& formal, const Argument& given) {
  if (const auto* list = get<std::vector<int64_t>>(given)) return list_of(*list);
  const auto* one = get<int64_t>(given);
  if (one == nullptr || !formal.N().has_value()) return std::nullopt;
  return list_of(std::vector<int64_t>(static_cast<size_t>(*formal.N()), *one));
}

std::optional<c10::IValue> reals(const Argument& given) {
  if (const auto* list = get<std::vector<double>>(given)) return list_of(*list);
  const auto* whole = get<std::vector<int64_t>>(given);
  if (whole == nullptr) return std::nullopt;
  return list_of(std::vector<double>(whole->begin(), whole->end()));
}

std::optional<c10::IValue> booleans(const Argument& given) {
  const auto* whole = get<std::vector<int64_t>>(given);
  if (whole == nullptr) return std::nullopt;
  c10::List<bool> list;
  for (const int64_t entry : *whole) list.push_back(entry != 0);
  return c10::IValue(list);
}

std::optional<c10::IValue> integer(const c10::Argument& formal, const Argument& given) {
  if (const auto* number = get<int64_t>(given)) return *number;
  const auto* name = get<std::string>(given);
  if (name == nullptr) return std::nullopt;
  c10::TypePtr real = formal.real_type();
  if (const auto optional = real->cast<c10::OptionalType>()) real = optional->getElementType();
  if (real->kind() != TypeKind::ScalarTypeType) return std::nullopt;
  const std::optional<int64_t> dtype = dtype_number(*name);
  return dtype.has_value() ? std::optional<c10::IValue>(*dtype) : std::nullopt;
}

std::optional<c10::IValue> number(const Argument& given) {
  if (const auto* value = get<bool>(given)) return *value;
  if (const auto* value = get<int64_t>(given)) return *value;
  if (const auto* value = get<double>(given)) return *value;
  return std::nullopt;
}

std::optional<c10::IValue> real(const Argument& given) {
  if (const auto* value = get<int64_t>(given)) return static_cast<double>(*value);
  if (const auto* value = get<double>(given)) return *value;
  return std::nullopt;
}

// An argument that is no tensor.
std::optional<c10::IValue> plain(const c10::Argument& formal, const c10::Type& type, const Argument& given) {
  switch (type.kind()) {
    case TypeKind::NumberType:
      return number(given);
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return integer(formal, given);
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return real(given);
    case TypeKind::BoolType: {
      const auto* value = get<bool>(given);
      return value == nullptr ? std::nullopt : std::optional<c10::IValue>(*value);
    }
    case TypeKind::StringType: {
      const auto* value = get<std::string>(given);
      return value == nullptr ? std::nullopt : std::optional<c10::IValue>(*value);
    }
    case TypeKind::ListType:
      switch (type.castRaw<c10::ListType>()->getElementType()->kind()) {
        case TypeKind::IntType:
        case TypeKind::SymIntType:
          return integers(formal, given);
        case TypeKind::FloatType:
          return reals(given);
        case TypeKind::BoolType:
          return booleans(given);
        default:
          return std::nullopt;
      }
    default:
      return std::nullopt;
  }
}

// The overloads of an operator, by name. Goes through all operators of PyTorch.
std::vector<c10::OperatorHandle> find_overloads(std::string_view base) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorName> names = dispatcher.getAllOpNames();
  std::erase_if(names,
                [&](const c10::OperatorName& other) { return other.name != base || other.overload_name.empty(); });
  std::ranges::sort(names, {}, &c10::OperatorName::overload_name);
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& other : names) {
    if (auto handle = dispatcher.findSchema(other)) found.push_back(*handle);
  }
  return found;
}

}  // namespace

// The operator of exactly this name mostly takes the arguments, so others are looked for last.
SchemaCall::SchemaCall(std::string_view name, const SchemaCall::Arguments& arguments,
                       const SchemaCall::Attributes& attributes) {
  std::string reasons;
  const auto takes = [&](const c10::OperatorHandle& candidate) {
    op_ = candidate;
    name_ = c10::toString(candidate.operator_name());
    const std::string reason = fill(arguments, attributes);
    if (!reason.empty()) reasons += "\n  " + reason + ": " + c10::str(candidate.schema());
    return reason.empty();
  };
  if (const auto exact = find_exactly(name); exact && takes(*exact)) return;
  if (name.find('.') == std::string_view::npos) {
    for (const c10::OperatorHandle& candidate : find_overloads(name)) {
      if (takes(candidate)) return;
    }
  }
  TORCH_CHECK(!reasons.empty(), "hetero: PyTorch has no operator '", name,
              "'; its names are those of the dispatcher, such as aten::linear or aten::add.Tensor");
  TORCH_CHECK(false, "hetero: no schema of ", name, " takes these arguments", reasons);
}

SchemaCall SchemaCall::joined(const std::string& op, const std::vector<SchemaCall>& calls) {
  SchemaCall made = calls.front();
  made.op_ = find_operator(op);
  made.name_ = op;
  for (size_t c = 1; c < calls.size(); ++c) {
    made.slots_.insert(made.slots_.end(), calls[c].slots_.begin() + 1, calls[c].slots_.end());
    made.tensors_.insert(made.tensors_.end(), calls[c].tensors_.begin() + 1, calls[c].tensors_.end());
  }
  return made;
}

std::string SchemaCall::fill(const SchemaCall::Arguments& arguments, const SchemaCall::Attributes& attributes) {
  slots_.clear();
  tensors_.clear();
  const auto& formals = op_->schema().arguments();
  // What comes behind the `*` of a schema, as `out` does, is given by name only.
  const auto in_order = static_cast<size_t>(
      std::ranges::find_if(formals, [](const c10::Argument& formal) { return formal.kwarg_only(); }) - formals.begin());
  if (arguments.size() > in_order) return "more arguments than the schema takes without a name";
  size_t named = 0;
  for (size_t i = 0; i < formals.size(); ++i) {
    const c10::Argument& formal = formals[i];
    const auto attribute = std::ranges::find(attributes, formal.name(), &std::pair<std::string, GraphArgument>::first);
    const bool is_named = attribute != attributes.end();
    named += is_named;
    if (i < arguments.size() && is_named) return formal.name() + " is given twice";
    if (i < arguments.size() || is_named) {
      if (!fill(formal, is_named ? attribute->second : arguments[i])) return formal.name() + " is of another kind";
    } else if (formal.name() == "device") {
      slots_.push_back({.kind = Slot::Kind::kDevice});
    } else if (formal.default_value().has_value()) {
      slots_.push_back({.fixed = *formal.default_value()});
    } else {
      return formal.name() + " is missing";
    }
  }
  return named == attributes.size() ? ""
                                    : "an attribute has a name that the schema does not have, or two have the same";
}

bool SchemaCall::fill(const c10::Argument& formal, const GraphArgument& given) {
  c10::TypePtr type = formal.type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    if (get<std::monostate>(given) != nullptr) {
      slots_.push_back({});
      return true;
    }
    type = optional->getElementType();
  }
  if (fill_tensors(*type, given)) return true;
  std::optional<c10::IValue> value = plain(formal, *type, given);
  if (!value.has_value()) return false;
  slots_.push_back({.fixed = std::move(*value)});
  return true;
}

bool SchemaCall::fill_tensors(const c10::Type& type, const GraphArgument& given) {
  if (const auto* value = get<Value>(given); value != nullptr && type.kind() == TypeKind::TensorType) {
    slots_.push_back({.kind = Slot::Kind::kTensor});
    tensors_.push_back(*value);
    return true;
  }
  const auto* values = get<std::vector<Value>>(given);
  if (values == nullptr || type.kind() != TypeKind::ListType) return false;
  const c10::TypePtr element = type.castRaw<c10::ListType>()->getElementType();
  const bool optional = element->isSubtypeOf(*c10::OptionalType::ofTensor()) && element->kind() != TypeKind::TensorType;
  if (!optional && element->kind() != TypeKind::TensorType) return false;
  Slot slot{.kind = optional ? Slot::Kind::kOptionalTensors : Slot::Kind::kTensors};
  for (const Value& value : *values) {
    const bool is_tensor = !optional || value.node != Value().node;
    slot.given.push_back(is_tensor);
    if (is_tensor) tensors_.push_back(value);
  }
  slots_.push_back(std::move(slot));
  return true;
}

std::vector<at::Tensor> SchemaCall::operator()(const std::vector<at::Tensor>& tensors, c10::Device device) const {
  torch::jit::Stack stack;
  size_t next = 0;
  for (const Slot& slot : slots_) {
    switch (slot.kind) {
      case Slot::Kind::kFixed:
        stack.push_back(slot.fixed);
        break;
      case Slot::Kind::kDevice:
        stack.push_back(device);
        break;
      case Slot::Kind::kTensor:
        stack.push_back(tensors[next++]);
        break;
      case Slot::Kind::kTensors: {
        c10::List<at::Tensor> list;
        for (size_t i = 0; i < slot.given.size(); ++i) list.push_back(tensors[next++]);
        stack.push_back(std::move(list));
        break;
      }
      case Slot::Kind::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (const bool given : slot.given) {
          list.push_back(given ? std::optional<at::Tensor>(tensors[next++]) : std::nullopt);
        }
        stack.push_back(std::move(list));
        break;
      }
    }
  }
  op_->callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    TORCH_CHECK(value.isTensor() || value.isTensorList(), "hetero: ", name_, " gives something else than tensors");
    if (value.isTensor()) results.push_back(value.toTensor());
    if (value.isTensorList()) std::ranges::copy(value.toTensorVector(), std::back_inserter(results));
  }
  return results;
}

}  // namespace hetero::ops
