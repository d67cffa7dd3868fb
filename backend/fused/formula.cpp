#include "backend/fused/formula.h"

namespace hetero::backend {

OperationTraits traits(MapOperation operation) {
  using enum OperationTraits::Result;
  using enum OperationTraits::NumberType;
  using enum OperationTraits::Types;
  using enum OperationTraits::Entries;
  switch (operation) {
#define HETERO_OPERATION(name, function, operands, numbers, result, number_type, types, entries) \
  case MapOperation::name:                                                                       \
    return {#function, operands, numbers, result, number_type, types, entries};
#include "backend/fused/operations.def"
    case MapOperation::kOpaque:
    case MapOperation::kCount:
      break;
  }
  return {"", 0};
}

bool is_power_of_number(const MapFormula& formula) {
  return formula.operation == MapOperation::kPow && formula.form == NumberForm::kRight;
}

bool rounds_inside(const MapFormula& formula) {
  if (formula.from == EntryType{}) return false;
  switch (formula.operation) {
    case MapOperation::kRsqrt:
    case MapOperation::kAddScaled:
    case MapOperation::kSigmoidBackward:
      return true;
    default:
      return is_power_of_number(formula);
  }
}

const char* name_of(ReduceOperation operation) {
  using R = ReduceOperation;
  switch (operation) {
    case R::kOpaque:
    case R::kCount:
      return "";
    case R::kSum:
      return "Sum";
    case R::kProduct:
      return "Product";
    case R::kMaximum:
    case R::kAny:
      return "Maximum";
    case R::kMinimum:
    case R::kAll:
      return "Minimum";
    case R::kArgMaximum:
      return "ArgMaximum";
    case R::kArgMinimum:
      return "ArgMinimum";
    case R::kSquaredDeviation:
      return "SquaredDeviation";
    case R::kPeak:
      return "Peak";
    case R::kSquaredDistance:
      return "SquaredDistance";
    case R::kSumExpFast:
      return "SumExp";
    case R::kPick:
      return "Pick";
  }
  return "";
}

int entry_bytes(EntryType type) {
  switch (type) {
    case EntryType::kByte:
    case EntryType::kBool:
    case EntryType::kInt8:
      return 1;
    case EntryType::kFloat16:
    case EntryType::kBFloat16:
    case EntryType::kInt16:
      return 2;
    case EntryType::kFloat32:
    case EntryType::kInt32:
      return 4;
    case EntryType::kFloat64:
    case EntryType::kInt64:
      break;
  }
  return 8;
}

bool is_number(const MapFormula& formula, int j) {
  if (formula.form == NumberForm::kNone) return false;
  if (formula.form == NumberForm::kLeft) return j == 0;
  return j == 1 || (j == 2 && formula.operation == MapOperation::kMulAdd);
}

namespace {

int replaced(const MapFormula& formula) {
  int count = 0;
  for (int j = 0; j < traits(formula.operation).operands; ++j) count += is_number(formula, j) ? 1 : 0;
  return count;
}

}  // namespace

int input_count(const MapFormula& formula) { return traits(formula.operation).operands - replaced(formula); }

int input_bytes(const MapFormula& formula, int j) {
  const bool is_condition = (formula.operation == MapOperation::kWhere && j == 0) ||
                            (formula.operation == MapOperation::kMaskedFill && j == 1);
  if (is_condition) return 1;
  return entry_bytes(formula.operation == MapOperation::kConvert ? formula.from : formula.type);
}

int result_bytes(const MapFormula& formula) {
  return traits(formula.operation).result == OperationTraits::Result::kBool ? 1 : entry_bytes(formula.type);
}

int number_count(const MapFormula& formula) { return traits(formula.operation).numbers + replaced(formula); }

int input_bytes(const ReducerFormula& formula) {
  const bool is_typed = formula.operation != ReduceOperation::kOpaque && formula.operation != ReduceOperation::kPick;
  return is_typed ? entry_bytes(formula.type) : 0;
}

int result_bytes(const ReducerFormula& formula) {
  using R = ReduceOperation;
  const bool is_place = formula.operation == R::kArgMaximum || formula.operation == R::kArgMinimum;
  return is_place ? static_cast<int>(sizeof(int64_t)) : input_bytes(formula);
}

}  // namespace hetero::backend
