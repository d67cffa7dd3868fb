// What the vector functions compute, for those that the engine compiles (backend/cpu/fused_compile.h). Rows repeat what functions_impl.h
// does, fused products and sums included; tests/ops/compile_test.cpp compares the two bit by bit.

#include "ops/config.h"
#include "ops/fused/functions.h"

#include <ATen/Version.h>

#include <optional>
#include <string>

#include "backend/cpu/fused_compile.h"

namespace hetero::ops {
namespace {

using backend::EntryType;
using backend::MapFormula;
using backend::MapFunction;
using backend::MapOperation;
using backend::NumberForm;

struct Row {
  Function function;
  MapOperation operation;
};

// Of float32 and float64, and so of the half dtypes where those have no function of their own.
constexpr Row kFloatRows[] = {
    {Function::kNegate, MapOperation::kNegate},
    {Function::kAbs, MapOperation::kAbs},
    {Function::kFloor, MapOperation::kFloor},
    {Function::kCeil, MapOperation::kCeil},
    {Function::kRound, MapOperation::kRound},
    {Function::kTrunc, MapOperation::kTrunc},
    {Function::kReciprocal, MapOperation::kReciprocal},
    {Function::kRsqrt, MapOperation::kRsqrt},
    {Function::kRelu, MapOperation::kRelu},
    {Function::kAdd, MapOperation::kAdd},
    {Function::kSub, MapOperation::kSubtract},
    {Function::kMul, MapOperation::kMultiply},
    {Function::kDiv, MapOperation::kDivide},
    {Function::kMaximum, MapOperation::kMaximum},
    {Function::kMinimum, MapOperation::kMinimum},
    {Function::kAddScaled, MapOperation::kAddScaled},
    {Function::kEqual, MapOperation::kEqual},
    {Function::kNotEqual, MapOperation::kNotEqual},
    {Function::kLess, MapOperation::kLess},
    {Function::kLessEqual, MapOperation::kLessEqual},
    {Function::kGreater, MapOperation::kGreater},
    {Function::kGreaterEqual, MapOperation::kGreaterEqual},
    {Function::kClamp, MapOperation::kClamp},
    {Function::kClampMin, MapOperation::kClampMin},
    {Function::kClampMax, MapOperation::kClampMax},
    {Function::kThreshold, MapOperation::kThreshold},
    {Function::kLeakyRelu, MapOperation::kLeakyRelu},
    {Function::kSigmoidBackward, MapOperation::kSigmoidBackward},
    {Function::kTanhBackward, MapOperation::kTanhBackward},
    {Function::kAddcmul, MapOperation::kAddcmul},
    {Function::kAddcdiv, MapOperation::kAddcdiv},
};
constexpr Row kBoolRows[] = {
    {Function::kBitwiseAnd, MapOperation::kAnd}, {Function::kBitwiseOr, MapOperation::kOr},
    {Function::kBitwiseXor, MapOperation::kXor}, {Function::kLogicalAnd, MapOperation::kAnd},
    {Function::kLogicalOr, MapOperation::kOr},   {Function::kMul, MapOperation::kAnd},
};
// What only moves bits.
constexpr Row kAnyRows[] = {
    {Function::kWhere, MapOperation::kWhere},
    {Function::kMaskedFill, MapOperation::kMaskedFill},
};

std::optional<EntryType> entry_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
    case at::kByte:
      return EntryType::kByte;
    case at::kHalf:
      return EntryType::kFloat16;
    case at::kBFloat16:
      return EntryType::kBFloat16;
    case at::kFloat:
      return EntryType::kFloat32;
    case at::kDouble:
      return EntryType::kFloat64;
    default:
      return std::nullopt;
  }
}

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

struct Describer {
  FunctionTable& table;

  MapFunction& at(Function function, Form form, at::ScalarType dtype) {
    return table.maps[static_cast<size_t>(form)][static_cast<size_t>(function)][static_cast<size_t>(dtype)];
  }
  static void put(MapFunction& map, MapFormula formula) {
    if (map != nullptr && backend::can_generate(formula)) map.formula = formula;
  }
  void floats(const Row& row) {
    for (const Form form : {Form::kTensors, Form::kNumberRight, Form::kNumberLeft}) {
      const auto as = static_cast<NumberForm>(form);
      MapFunction& single = at(row.function, form, at::kFloat);
      put(single, {row.operation, EntryType::kFloat32, {}, as});
      put(at(row.function, form, at::kDouble), {row.operation, EntryType::kFloat64, {}, as});
      for (const at::ScalarType half : {at::kHalf, at::kBFloat16}) {
        MapFunction& map = at(row.function, form, half);
        if (map.pointer == single.pointer) map.formula = single.formula;
      }
    }
  }
  void casts() {
    for (int from = 0; from < kDTypeCount; ++from) {
      for (int to = 0; to < kDTypeCount; ++to) {
        const std::optional<EntryType> source = entry_type(static_cast<at::ScalarType>(from));
        const std::optional<EntryType> target = entry_type(static_cast<at::ScalarType>(to));
        // Of bytes, only bools are made by a comparison with zero.
        if (!source.has_value() || !target.has_value() || to == static_cast<int>(at::kByte)) continue;
        put(table.casts[from][to], {MapOperation::kConvert, *target, *source, NumberForm::kNone});
      }
    }
  }
};
static_assert(static_cast<int>(Form::kNumberRight) == static_cast<int>(NumberForm::kRight) &&
              static_cast<int>(Form::kNumberLeft) == static_cast<int>(NumberForm::kLeft));

}  // namespace

void add_formulas(FunctionTable& table) {
  Describer describer{table};
  for (const Row& row : kFloatRows) describer.floats(row);
  for (const Row& row : kBoolRows) {
    Describer::put(describer.at(row.function, Form::kTensors, at::kBool),
                   {row.operation, EntryType::kByte, {}, NumberForm::kNone});
  }
  for (const Row& row : kAnyRows) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      const auto as = static_cast<at::ScalarType>(dtype);
      MapFunction& map = describer.at(row.function, Form::kTensors, as);
      if (map != nullptr) Describer::put(map, {row.operation, type_of_size(as), {}, NumberForm::kNone});
    }
  }
  describer.casts();
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
