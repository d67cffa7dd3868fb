#include "backend/cpu/fused_formula.h"

namespace hetero::backend {

OperationTraits traits(MapOperation operation) {
  using O = MapOperation;
  constexpr auto kBool = OperationTraits::Result::kBool;
  constexpr auto kSame = OperationTraits::Result::kSame;
  switch (operation) {
    case O::kOpaque:
    case O::kCount:
      return {"", 0};
    case O::kNegate:
      return {"negate"};
    case O::kAbs:
      return {"absolute"};
    case O::kFloor:
      return {"floor_of"};
    case O::kCeil:
      return {"ceil_of"};
    case O::kRound:
      return {"round_of"};
    case O::kTrunc:
      return {"trunc_of"};
    case O::kReciprocal:
      return {"reciprocal"};
    case O::kRsqrt:
      return {"inverse_root"};
    case O::kRelu:
      return {"relu"};
    case O::kAdd:
      return {"add", 2};
    case O::kSub:
      return {"sub", 2};
    case O::kMul:
      return {"mul", 2};
    case O::kDiv:
      return {"div", 2};
    case O::kMaximum:
      return {"maximum", 2};
    case O::kMinimum:
      return {"minimum", 2};
    case O::kAddScaled:
      return {"add_scaled", 2, 1};
    case O::kEqual:
      return {"equal", 2, 0, kBool};
    case O::kNotEqual:
      return {"not_equal", 2, 0, kBool};
    case O::kLess:
      return {"less", 2, 0, kBool};
    case O::kLessEqual:
      return {"less_equal", 2, 0, kBool};
    case O::kGreater:
      return {"greater", 2, 0, kBool};
    case O::kGreaterEqual:
      return {"greater_equal", 2, 0, kBool};
    case O::kClamp:
      return {"clamp", 1, 2};
    case O::kClampMin:
      return {"clamp_min", 1, 1};
    case O::kClampMax:
      return {"clamp_max", 1, 1};
    case O::kThreshold:
      return {"threshold", 2, 2};
    case O::kLeakyRelu:
      return {"leaky_relu", 1, 1};
    case O::kSigmoidBackward:
      return {"sigmoid_backward", 2};
    case O::kTanhBackward:
      return {"tanh_backward", 2};
    case O::kAddcmul:
      return {"addcmul", 3, 1};
    case O::kAddcdiv:
      return {"addcdiv", 3, 1};
    case O::kWhere:
      return {"where", 3};
    case O::kMaskedFill:
      return {"masked_fill", 2, 1};
    case O::kBitwiseAnd:
      return {"bitwise_and", 2};
    case O::kBitwiseOr:
      return {"bitwise_or", 2};
    case O::kBitwiseXor:
      return {"bitwise_xor", 2};
    case O::kLogicalAnd:
      return {"logical_and", 2, 0, kBool};
    case O::kLogicalOr:
      return {"logical_or", 2, 0, kBool};
    case O::kConvert:
      return {"convert"};
    case O::kSign:
      return {"sign"};
    case O::kSqrt:
      return {"root"};
    case O::kExp:
      return {"exp_of"};
    case O::kExp2:
      return {"exp2_of"};
    case O::kExpm1:
      return {"expm1_of"};
    case O::kLog:
      return {"log_of"};
    case O::kLog1p:
      return {"log1p_of"};
    case O::kLog2:
      return {"log2_of"};
    case O::kLog10:
      return {"log10_of"};
    case O::kSin:
      return {"sin_of"};
    case O::kCos:
      return {"cos_of"};
    case O::kTan:
      return {"tan_of"};
    case O::kTanh:
      return {"tanh_of"};
    case O::kErf:
      return {"erf_of"};
    case O::kErfc:
      return {"erfc_of"};
    case O::kSigmoid:
      return {"sigmoid"};
    case O::kSilu:
      return {"silu"};
    case O::kGelu:
      return {"gelu"};
    case O::kGeluTanh:
      return {"gelu_tanh"};
    case O::kLogicalNot:
      return {"logical_not", 1, 0, kBool};
    case O::kBitwiseNot:
      return {"bitwise_not"};
    case O::kExpFast:
      return {"exp_of"};
    case O::kFiniteOrZero:
      return {"finite_or_zero"};
    case O::kDivTrunc:
      return {"div_trunc", 2};
    case O::kDivFloor:
      return {"div_floor", 2};
    case O::kFmod:
      return {"fmod_of", 2};
    case O::kRemainder:
      return {"remainder_of", 2};
    case O::kAtan2:
      return {"atan2_of", 2};
    case O::kPow:
      return {"power", 2};
    case O::kSiluBackward:
      return {"silu_backward", 2};
    case O::kGeluBackward:
      return {"gelu_backward", 2};
    case O::kGeluTanhBackward:
      return {"gelu_tanh_backward", 2};
    case O::kElu:
      return {"elu", 1, 3};
    case O::kSoftplus:
      return {"softplus", 1, 2};
    case O::kInverseDeviation:
      return {"inverse_deviation", 1, 2};
    case O::kNormTerm:
      return {"norm_term", 1, 1, kSame, true};
    case O::kNormPeak:
      return {"norm_peak", 1, 1, kSame, true};
    case O::kNegatedProduct:
      return {"negated_product", 2};
    case O::kNormResult:
      return {"norm_result", 2, 1, kSame, true};
    case O::kHardtanhBackward:
      return {"hardtanh_backward", 2, 2};
    case O::kLeakyReluBackward:
      return {"leaky_relu_backward", 2, 1};
    case O::kLerpNumber:
      return {"lerp", 2, 1};
    case O::kLerp:
      return {"lerp", 3};
    case O::kMulAdd:
      return {"mul_add", 3};
  }
  return {"", 0};
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

namespace {

// How many operands are numbers. A form replaces one, but of a product and a sum both factor and summand.
int replaced(const MapFormula& formula) {
  if (formula.form == NumberForm::kNone) return 0;
  return formula.operation == MapOperation::kMulAdd ? 2 : 1;
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
