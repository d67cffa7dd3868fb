// The formulas of the vector functions: the names by which the engine compiles the simple ones
// (backend/cpu/fused/compile.h), and by which other devices know them all. functions_impl.h does
// what the first part of MapOperation says, fused products and sums included;
// tests/ops/compile_test.cpp compares the two bit by bit.

#include "ops/fused/functions.h"
#include "ops/settings/config.h"

#include <ATen/Version.h>

#include <string>

#include "backend/cpu/fused/compile.h"

namespace hetero::ops {
namespace {

using backend::EntryType;
using backend::MapFormula;
using backend::MapFunction;
using backend::MapOperation;
using backend::NumberForm;

EntryType entry_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return EntryType::kByte;
    case at::kChar:
      return EntryType::kInt8;
    case at::kShort:
      return EntryType::kInt16;
    case at::kInt:
      return EntryType::kInt32;
    case at::kLong:
      return EntryType::kInt64;
    case at::kHalf:
      return EntryType::kFloat16;
    case at::kBFloat16:
      return EntryType::kBFloat16;
    case at::kFloat:
      return EntryType::kFloat32;
    case at::kDouble:
      return EntryType::kFloat64;
    default:
      return EntryType::kBool;
  }
}

// What only moves bits is one function for all types of a size.
EntryType type_of_size(at::ScalarType dtype) {
  switch (c10::elementSize(dtype)) {
    case 1:
      return EntryType::kByte;
    case 2:
      return EntryType::kFloat16;
    case 4:
      return EntryType::kFloat32;
    default:
      return EntryType::kFloat64;
  }
}

bool moves_bits(Function function) { return function == Function::kWhere || function == Function::kMaskedFill; }

static_assert(static_cast<int>(Form::kNumberRight) == static_cast<int>(NumberForm::kRight) &&
              static_cast<int>(Form::kNumberLeft) == static_cast<int>(NumberForm::kLeft));

MapFormula formula_of(const FunctionTable& table, Function function, Form form, at::ScalarType dtype) {
  const auto as = static_cast<NumberForm>(form);
  if (moves_bits(function)) return {function, type_of_size(dtype), {}, as};
  const at::ScalarType compute = compute_dtype(dtype);
  MapFormula formula{function, entry_type(compute), {}, as};
  if (compute != dtype) {
    const at::ScalarType other = dtype == at::kHalf ? at::kBFloat16 : at::kHalf;
    const MapFunction own = table.map(function, form, dtype);
    const bool is_shared = own == table.map(function, form, compute) || own == table.map(function, form, other);
    if (!is_shared) formula.from = entry_type(dtype);
  }
  return formula;
}

}  // namespace

void add_formulas(FunctionTable& table) {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    const auto as = static_cast<at::ScalarType>(dtype);
    for (const Form form : {Form::kTensors, Form::kNumberRight, Form::kNumberLeft}) {
      for (int function = 0; function < static_cast<int>(Function::kCount); ++function) {
        MapFunction& map = table.maps[static_cast<size_t>(form)][function][dtype];
        if (map != nullptr) map.formula = formula_of(table, static_cast<Function>(function), form, as);
      }
    }
    for (int to = 0; to < kDTypeCount; ++to) {
      MapFunction& map = table.casts[dtype][to];
      if (map == nullptr) continue;
      map.formula = {MapOperation::kConvert, entry_type(static_cast<at::ScalarType>(to)), entry_type(as), {}};
    }
  }
}

void choose_instruction_set() {
  using backend::InstructionSet;
  const std::string capability = at::get_cpu_capability();
  backend::limit_instruction_set(!config().jit            ? InstructionSet::kPortable
                                 : capability == "AVX512" ? InstructionSet::kAvx512
                                 : capability == "AVX2"   ? InstructionSet::kAvx2
                                                          : InstructionSet::kPortable);
}

}  // namespace hetero::ops
