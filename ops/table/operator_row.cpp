#include "ops/table/operator_row.h"

#include <unordered_map>
#include <vector>

#include "operator_headers/all.h"

namespace hetero::ops {
namespace {

// A row while it is written down: op_table.def adds one property after the other.
struct RowBuilder : OperatorRow {
  RowBuilder(std::string row_name, graph::OpClass row_class) {
    name = std::move(row_name);
    op_class = row_class;
  }
  template <typename T>
  RowBuilder& with(T OperatorRow::*column, T value) {
    this->*column = std::move(value);
    return *this;
  }
};

struct Table {
  std::unordered_map<std::string, OperatorRow> rows;
  std::vector<OperatorRow> families;
};

template <typename Op>
std::string name_of() {
  return std::string(Op::name) + (*Op::overload_name != '\0' ? "." : "") + Op::overload_name;
}

Table read_table() {
  Table table;
  size_t index = 0;
  const auto add = [&](OperatorRow row) {
    row.index = index++;
    table.rows.emplace(row.name, row);
  };
  const auto add_family = [&](OperatorRow row) {
    row.index = index++;
    table.families.push_back(row);
  };
  using graph::OpClass;
#define HETERO_ALL_ROWS
#define OUT(op, out, op_class, ...) add(RowBuilder(name_of<at::_ops::op>(), OpClass::op_class) __VA_ARGS__);
#define NEW(op, op_class, ...) add(RowBuilder(name_of<at::_ops::op>(), OpClass::op_class) __VA_ARGS__);
#define INPLACE(op, op_class, ...) add(RowBuilder(name_of<at::_ops::op>(), OpClass::op_class) __VA_ARGS__);
#define CODE(op, op_class, ...) add(RowBuilder(name_of<at::_ops::op>(), OpClass::op_class) __VA_ARGS__);
#define RANDOM(op, kernel, ...) add(RowBuilder(op, OpClass::kRandom) CHECKS_NUMBERS __VA_ARGS__);
#define BOXED(op, op_class, ...) add(RowBuilder(op, OpClass::op_class) __VA_ARGS__);
#define FAMILY(op, ...) add_family(RowBuilder(op, OpClass::kOther) __VA_ARGS__);
#define SHAPE(rule) .with(&OperatorRow::shape_rule, ShapeRule::rule)
#define MEANING(check) .with(&OperatorRow::meaning, ArgumentMeaning::check)
#define HIDDEN_WRITES(flag, ...) .with(&OperatorRow::hidden_writes, HiddenWrites{flag, arguments_at(__VA_ARGS__)})
#define STATISTICS(...) .with(&OperatorRow::statistics, arguments_at(__VA_ARGS__))
#define RESULT_SIZES(argument) .with(&OperatorRow::result_sizes, argument)
#define TAIL .with(&OperatorRow::tail, true)
#define GROWS .with(&OperatorRow::grows, true)
#define KEEPS_LAYOUT .with(&OperatorRow::keeps_layout, true)
#define LEADS .with(&OperatorRow::leads, true)
#define HOST_TASK .with(&OperatorRow::host_task, true)
#define OVERWRITES .with(&OperatorRow::overwrites, true)
#define RECORDED .with(&OperatorRow::recorded, true)
#define WHOLE .with(&OperatorRow::whole, true)
#define DYNAMIC_SHAPE .with(&OperatorRow::dynamic_shape, true)
#define CPU_TENSORS .with(&OperatorRow::cpu_tensors, true)
#define CPU_INDICES .with(&OperatorRow::cpu_indices, true)
#define TAKES_BY_MASK .with(&OperatorRow::takes_by_mask, true)
#define ANY_NUMBERS .with(&OperatorRow::any_numbers, true)
#define LAYOUT_BY_SIZE .with(&OperatorRow::layout_by_size, true)
#define TAKES_PIVOTS .with(&OperatorRow::takes_pivots, true)
#define CHECKS_ARGUMENTS .with(&OperatorRow::checks_arguments, true)
#define CHECKS_NUMBERS .with(&OperatorRow::checks_numbers, true)
#define NO_DEVICE_OUT .with(&OperatorRow::no_device_out, true)
#include "ops/table/op_table.def"
  return table;
}

// Whether the operator is one of the family: an overload of its name, or, with a * at the end, one
// whose name begins so.
bool belongs_to(std::string_view name, std::string_view family) {
  if (family.ends_with('*')) return name.starts_with(family.substr(0, family.size() - 1));
  return name.substr(0, name.find('.')) == family;
}

}  // namespace

OperatorRow describe_operator(std::string_view name) {
  static const auto* const table = new Table(read_table());
  const auto found = table->rows.find(std::string(name));
  OperatorRow row;
  if (found != table->rows.end()) {
    row = found->second;
  } else {
    row.name = name;
  }
  for (const OperatorRow& family : table->families) {
    if (!belongs_to(name, family.name)) continue;
    if (family.meaning != ArgumentMeaning::kAny) row.meaning = family.meaning;
    for (bool OperatorRow::*const fact :
         {&OperatorRow::keeps_layout, &OperatorRow::whole, &OperatorRow::dynamic_shape, &OperatorRow::cpu_tensors,
          &OperatorRow::cpu_indices, &OperatorRow::takes_by_mask, &OperatorRow::any_numbers,
          &OperatorRow::layout_by_size, &OperatorRow::takes_pivots, &OperatorRow::checks_arguments,
          &OperatorRow::no_device_out}) {
      row.*fact |= family.*fact;
    }
  }
  return row;
}

}  // namespace hetero::ops
