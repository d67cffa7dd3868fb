#include "ops/program/operator_fusion.h"

#include <algorithm>

namespace hetero::ops {
namespace {

using c10::Argument;

// One new tensor, and nothing else.
void check_function(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const bool makes_one =
      schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::TensorType;
  TORCH_CHECK(makes_one, "hetero: an operator of a fusion makes one tensor, and this one does not: ", schema);
  const auto aliases = [](const Argument& argument) { return argument.alias_info() != nullptr; };
  TORCH_CHECK(std::ranges::none_of(schema.arguments(), aliases),
              "hetero: an operator of a fusion neither writes nor views its arguments, and this one does: ", schema);
}

std::string text_of(const std::vector<Argument>& arguments) {
  std::string text;
  for (const Argument& argument : arguments) {
    text += (text.empty() ? "" : ", ") + argument.type()->str() + ' ' + argument.name();
  }
  return '(' + text + ')';
}

}  // namespace

std::optional<c10::OperatorHandle> find_exactly(std::string_view name) {
  const size_t dot = name.find('.');
  const std::string_view overload = dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({std::string(name.substr(0, dot)), std::string(overload)});
}

c10::OperatorHandle find_operator(const std::string& name) {
  const auto found = find_exactly(name);
  TORCH_CHECK(found.has_value(), "hetero: PyTorch has no operator '", name,
              "'; a fusion names operators with their overloads, such as aten::add.Tensor");
  return *found;
}

void check_fusion(const std::vector<std::string>& chain, const std::string& op) {
  TORCH_CHECK(!chain.empty(), "hetero: a fusion is of one operator at least");
  std::vector<Argument> given;
  std::string names;
  for (const std::string& name : chain) {
    const c10::OperatorHandle part = find_operator(name);
    check_function(part);
    const std::vector<Argument>& arguments = part.schema().arguments();
    const bool is_first = names.empty();
    TORCH_CHECK(is_first || (!arguments.empty() && arguments[0].type()->kind() == c10::TypeKind::TensorType),
                "hetero: behind the first operator of a fusion, the first argument is the result of the one before, ",
                "which this one does not take: ", part.schema());
    given.insert(given.end(), arguments.begin() + (is_first ? 0 : 1), arguments.end());
    names += (is_first ? "" : ", ") + name;
  }
  const c10::OperatorHandle whole = find_operator(op);
  check_function(whole);
  const std::vector<Argument>& taken = whole.schema().arguments();
  const bool fits =
      std::ranges::equal(taken, given, [](const Argument& a, const Argument& b) { return *a.type() == *b.type(); });
  TORCH_CHECK(fits, "hetero: ", op, " takes ", text_of(taken), ", and ", names, " take ", text_of(given));
}

}  // namespace hetero::ops
