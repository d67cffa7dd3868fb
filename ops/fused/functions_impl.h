// The vector functions of one CPU capability. Included by functions_avx512.cpp, functions_avx2.cpp
// and functions_default.cpp only, each compiled with CPU_CAPABILITY and the machine flags that
// PyTorch compiles its own kernels with.
//
// Everything here has internal linkage, but for fill(): an inline function that two files shared
// could be linked in its AVX-512 version and then run on a lesser machine.

#pragma once

#include <cmath>

#include "ops/fused/functions.h"
#include "ops/fused/functions_formulas.h"
#include "ops/fused/functions_loops.h"
#include "ops/fused/functions_reducers.h"
#include "ops/fused/functions_roots.h"
#include "ops/fused/functions_selection.h"

namespace hetero::ops::CPU_CAPABILITY {
namespace {

struct Filler {
  FunctionTable& table;

  MapFunction& at(Function function, at::ScalarType dtype, Form form = Form::kTensors) {
    return table.maps[static_cast<size_t>(form)][static_cast<size_t>(function)][static_cast<size_t>(dtype)];
  }
  void halves(Function function, MapFunction map, Form form = Form::kTensors) {
    at(function, at::kHalf, form) = map;
    at(function, at::kBFloat16, form) = map;
  }

  // For float32, float64 and the half dtypes.
  template <int kInputs, int kNumbers = 0, typename F>
  void floats(Function function, F) {
    at(function, at::kFloat) = &vector_loop<float, kInputs, kNumbers, F>;
    at(function, at::kDouble) = &vector_loop<double, kInputs, kNumbers, F>;
    halves(function, at(function, at::kFloat));
  }
  // The same where the first or the second of two operands may be a number.
  template <int kNumbers = 0, typename F>
  void float_pairs(Function function, F f) {
    floats<2, kNumbers>(function, f);
    const auto put = [&](Form form, MapFunction single, MapFunction twice) {
      at(function, at::kFloat, form) = single;
      at(function, at::kDouble, form) = twice;
      halves(function, single, form);
    };
    put(Form::kNumberRight, &vector_loop<float, 1, kNumbers + 1, F>, &vector_loop<double, 1, kNumbers + 1, F>);
    put(Form::kNumberLeft, &vector_loop<float, 1, kNumbers + 1, Swapped<F>>,
        &vector_loop<double, 1, kNumbers + 1, Swapped<F>>);
  }
  // What float32 and float64 take from MKL, the half dtypes from SLEEF.
  template <Function function, typename F>
  void vml(const char* float_name, const char* double_name, F f) {
    floats<1>(function, f);
    vml_float<function> = reinterpret_cast<VmlFloat>(vml_function(float_name));
    vml_double<function> = reinterpret_cast<VmlDouble>(vml_function(double_name));
    if (vml_float<function> != nullptr) at(function, at::kFloat) = &run_vml_float<function>;
    if (vml_double<function> != nullptr) at(function, at::kDouble) = &run_vml_double<function>;
  }

  template <typename T, int kInputs, int kNumbers, typename F>
  void integer(Function function) {
    at(function, kDTypeOf<T>) = &entry_loop<T, T, kInputs, kNumbers, F>;
  }
  template <int kInputs, int kNumbers = 0, typename F>
  void integers(Function function, F) {
    integer<uint8_t, kInputs, kNumbers, F>(function);
    integer<int8_t, kInputs, kNumbers, F>(function);
    integer<int16_t, kInputs, kNumbers, F>(function);
    integer<int32_t, kInputs, kNumbers, F>(function);
    integer<int64_t, kInputs, kNumbers, F>(function);
  }
  template <typename T, typename R, int kNumbers, typename F>
  void entry_pair(Function function, at::ScalarType dtype) {
    at(function, dtype) = &entry_loop<T, R, 2, kNumbers, F>;
    at(function, dtype, Form::kNumberRight) = &entry_loop<T, R, 1, kNumbers + 1, F>;
    at(function, dtype, Form::kNumberLeft) = &entry_loop<T, R, 1, kNumbers + 1, Swapped<F>>;
  }
  template <int kNumbers = 0, typename F>
  void integer_pairs(Function function, F) {
    entry_pair<uint8_t, uint8_t, kNumbers, F>(function, at::kByte);
    entry_pair<int8_t, int8_t, kNumbers, F>(function, at::kChar);
    entry_pair<int16_t, int16_t, kNumbers, F>(function, at::kShort);
    entry_pair<int32_t, int32_t, kNumbers, F>(function, at::kInt);
    entry_pair<int64_t, int64_t, kNumbers, F>(function, at::kLong);
  }
  // Bools are bytes that are 0 or 1.
  template <int kNumbers = 0, typename F>
  void bool_pairs(Function function, F) {
    entry_pair<uint8_t, uint8_t, kNumbers, F>(function, at::kBool);
  }
  // From any dtype to bool.
  template <typename F>
  void predicates(Function function, F) {
    entry_pair<uint8_t, uint8_t, 0, F>(function, at::kByte);
    entry_pair<int8_t, uint8_t, 0, F>(function, at::kChar);
    entry_pair<int16_t, uint8_t, 0, F>(function, at::kShort);
    entry_pair<int32_t, uint8_t, 0, F>(function, at::kInt);
    entry_pair<int64_t, uint8_t, 0, F>(function, at::kLong);
    entry_pair<uint8_t, uint8_t, 0, F>(function, at::kBool);
    entry_pair<float, uint8_t, 0, F>(function, at::kFloat);
    entry_pair<double, uint8_t, 0, F>(function, at::kDouble);
    for (const Form form : {Form::kTensors, Form::kNumberRight, Form::kNumberLeft}) {
      halves(function, at(function, at::kFloat, form), form);
    }
  }

  template <typename From>
  void casts_from() {
    // Bools are bytes that are 0 or 1.
    using Read = std::conditional_t<std::is_same_v<From, bool>, uint8_t, From>;
    const auto put = [&]<typename To>(To) {
      if constexpr (!std::is_same_v<From, To>) {
        table.casts[static_cast<size_t>(kDTypeOf<From>)][static_cast<size_t>(kDTypeOf<To>)] = &cast_loop<Read, To>;
      }
    };
    put(uint8_t()), put(int8_t()), put(int16_t()), put(int32_t()), put(int64_t()), put(bool());
    put(c10::Half()), put(c10::BFloat16()), put(float()), put(double());
  }

  template <Reduction reduction, typename R, typename T>
  void reduce(at::ScalarType dtype) {
    table.reducers[static_cast<size_t>(reduction)][static_cast<size_t>(dtype)] = reducer_of<reduction, R, T>();
  }
  template <typename T>
  void reduce_extrema(at::ScalarType dtype) {
    reduce<Reduction::kMaximum, Extremum<T, true>, T>(dtype);
    reduce<Reduction::kMinimum, Extremum<T, false>, T>(dtype);
    reduce<Reduction::kArgMaximum, Place<T, true>, T>(dtype);
    reduce<Reduction::kArgMinimum, Place<T, false>, T>(dtype);
  }
  template <typename T>
  void reduce_floats(at::ScalarType dtype) {
    reduce<Reduction::kSum, Sum<T>, T>(dtype);
    reduce<Reduction::kProduct, Product<T>, T>(dtype);
    reduce<Reduction::kSquaredDeviation, SquaredDeviation<T>, T>(dtype);
    reduce<Reduction::kPeak, Peak<T>, T>(dtype);
    reduce<Reduction::kSquaredDistance, SumWith<T, AddSquaredDistance>, T>(dtype);
    reduce<Reduction::kSumExpFast, SumWith<T, AddExpFast>, T>(dtype);
    reduce_extrema<T>(dtype);
  }

  // For a half dtype, what kRoundsHalvesStepwise changes.
  template <typename T>
  void stepwise() {
    const auto rsqrt = [](const auto& x) { return rounded<T>(x.sqrt()).reciprocal(); };
    const auto add_scaled = [](const auto& a, const auto& b, const auto& alpha) { return a + rounded<T>(alpha * b); };
    using Add = decltype(add_scaled);
    at(Function::kRsqrt, kDTypeOf<T>) = &vector_loop<float, 1, 0, decltype(rsqrt)>;
    at(Function::kAddScaled, kDTypeOf<T>) = &vector_loop<float, 2, 1, Add>;
    at(Function::kAddScaled, kDTypeOf<T>, Form::kNumberRight) = &vector_loop<float, 1, 2, Add>;
    at(Function::kAddScaled, kDTypeOf<T>, Form::kNumberLeft) = &vector_loop<float, 1, 2, Swapped<Add>>;
  }

  void fill_rounding();
  void fill_exact();
  void fill_selection();
  void fill_reductions();
};

// x == value for a vector of any kind.
template <typename V>
V constant(double value) {
  return V(static_cast<typename V::value_type>(value));
}

// Floating-point arithmetic.
void Filler::fill_rounding() {
  using F = Function;
  floats<1>(F::kNegate, [](const auto& x) { return x.neg(); });
  floats<1>(F::kAbs, [](const auto& x) { return x.abs(); });
  floats<1>(F::kSign, [](const auto& x) { return sign(x); });
  floats<1>(F::kFloor, [](const auto& x) { return x.floor(); });
  floats<1>(F::kCeil, [](const auto& x) { return x.ceil(); });
  floats<1>(F::kRound, [](const auto& x) { return x.round(); });
  floats<1>(F::kTrunc, [](const auto& x) { return x.trunc(); });
  floats<1>(F::kRsqrt, [](const auto& x) { return x.rsqrt(); });
  // MKL's takes five times as long where some numbers are 0.
  floats<1>(F::kSqrt, [](const auto& x) { return x.sqrt(); });
  floats<1>(F::kReciprocal, [](const auto& x) { return x.reciprocal(); });
  floats<1>(F::kExp2, [](const auto& x) { return x.exp2(); });
  floats<1>(F::kExpm1, [](const auto& x) { return x.expm1(); });
  floats<1>(F::kLog1p, [](const auto& x) { return x.log1p(); });
  floats<1>(F::kExpFast, [](const auto& x) { return exp_fast(x); });
  vml<F::kExp>("vmsExp", "vmdExp", [](const auto& x) { return x.exp(); });
  vml<F::kLog>("vmsLn", "vmdLn", [](const auto& x) { return x.log(); });
  vml<F::kLog2>("vmsLog2", "vmdLog2", [](const auto& x) { return x.log2(); });
  vml<F::kLog10>("vmsLog10", "vmdLog10", [](const auto& x) { return x.log10(); });
  vml<F::kSin>("vmsSin", "vmdSin", [](const auto& x) { return x.sin(); });
  vml<F::kCos>("vmsCos", "vmdCos", [](const auto& x) { return x.cos(); });
  vml<F::kTan>("vmsTan", "vmdTan", [](const auto& x) { return x.tan(); });
  vml<F::kTanh>("vmsTanh", "vmdTanh", [](const auto& x) { return x.tanh(); });
  vml<F::kErf>("vmsErf", "vmdErf", [](const auto& x) { return x.erf(); });
  vml<F::kErfc>("vmsErfc", "vmdErfc", [](const auto& x) { return x.erfc(); });
  floats<1>(F::kFiniteOrZero, [](const auto& x) {
    using V = std::decay_t<decltype(x)>;
    return V::blendv(x, constant<V>(0), x.abs() == constant<V>(std::numeric_limits<double>::infinity()));
  });
  floats<1>(F::kSigmoid, [](const auto& x) {
    using V = std::decay_t<decltype(x)>;
    return (constant<V>(1) + (constant<V>(0) - x).exp()).reciprocal();
  });
  floats<1>(F::kSilu, [](const auto& x) {
    using V = std::decay_t<decltype(x)>;
    return x / (constant<V>(1) + x.neg().exp());
  });
  floats<1>(F::kGelu, [](const auto& x) { return gelu(x); });
  floats<1>(F::kGeluTanh, [](const auto& x) { return gelu_tanh(x); });
  floats<1>(F::kRelu, [](const auto& x) {
    using V = std::decay_t<decltype(x)>;
    return at::vec::clamp_min(x, constant<V>(0));
  });

  float_pairs(F::kAdd, [](const auto& a, const auto& b) { return a + b; });
  float_pairs(F::kSub, [](const auto& a, const auto& b) { return a - b; });
  float_pairs(F::kMul, [](const auto& a, const auto& b) { return a * b; });
  float_pairs(F::kDiv, [](const auto& a, const auto& b) { return a / b; });
  float_pairs(F::kDivTrunc, [](const auto& a, const auto& b) { return (a / b).trunc(); });
  float_pairs(F::kDivFloor, [](const auto& a, const auto& b) { return div_floor(a, b); });
  // Between tensors of a half dtype PyTorch rounds after each operation here; only a number on the
  // right is computed in float32.
  for (const Form form : {Form::kTensors, Form::kNumberLeft}) {
    halves(F::kDivTrunc, nullptr, form);
    halves(F::kDivFloor, nullptr, form);
  }
  float_pairs(F::kFmod, [](const auto& a, const auto& b) { return a.fmod(b); });
  float_pairs(F::kRemainder, [](const auto& a, const auto& b) { return remainder(a, b); });
  float_pairs(F::kAtan2, [](const auto& a, const auto& b) { return a.atan2(b); });
  float_pairs(F::kPow, [](const auto& a, const auto& b) { return a.pow(b); });
  float_pairs(F::kMaximum, [](const auto& a, const auto& b) { return at::vec::maximum(a, b); });
  float_pairs(F::kMinimum, [](const auto& a, const auto& b) { return at::vec::minimum(a, b); });
  float_pairs<1>(F::kAddScaled,
                 [](const auto& a, const auto& b, const auto& alpha) { return at::vec::fmadd(b, alpha, a); });
  if constexpr (kRoundsHalvesStepwise) {
    stepwise<c10::Half>();
    stepwise<c10::BFloat16>();
  }
  const auto scalar_power = [](auto a, auto b) { return std::pow(a, b); };
  entry_pair<float, float, 0, decltype(scalar_power)>(F::kPowOfScalars, at::kFloat);
  entry_pair<double, double, 0, decltype(scalar_power)>(F::kPowOfScalars, at::kDouble);
  at(F::kPow, at::kFloat, Form::kNumberRight) = &power<float, float>;
  at(F::kPow, at::kDouble, Form::kNumberRight) = &power<double, double>;
  at(F::kPow, at::kHalf, Form::kNumberRight) = &power<float, c10::Half>;
  at(F::kPow, at::kBFloat16, Form::kNumberRight) = &power<float, c10::BFloat16>;

  const auto norms = [&](Function function, MapFunction single, MapFunction twice) {
    at(function, at::kFloat) = single;
    at(function, at::kDouble) = twice;
    halves(function, single);
  };
  norms(F::kNormTerm, &norm_term<float>, &norm_term<double>);
  norms(F::kNormPeak, &norm_peak<float>, &norm_peak<double>);
  norms(F::kNormResult, &norm_result<float>, &norm_result<double>);

  floats<2>(F::kSigmoidBackward, [](const auto& grad, const auto& y) {
    using V = std::decay_t<decltype(y)>;
    return grad * (constant<V>(1) - y) * y;
  });
  const auto half_sigmoid_backward = [](const auto& grad, const auto& y) {
    return rounded<c10::Half>(grad * rounded<c10::Half>(Vectorized<float>(1.0f) - y)) * y;
  };
  at(F::kSigmoidBackward, at::kHalf) = &vector_loop<float, 2, 0, decltype(half_sigmoid_backward)>;
  floats<2>(F::kTanhBackward, [](const auto& grad, const auto& y) {
    using V = std::decay_t<decltype(y)>;
    return grad * (constant<V>(1) - y * y);
  });
  floats<2>(F::kSiluBackward, [](const auto& grad, const auto& x) { return silu_backward(grad, x); });
  floats<2>(F::kGeluBackward, [](const auto& grad, const auto& x) { return gelu_backward(grad, x); });
  floats<2>(F::kGeluTanhBackward, [](const auto& grad, const auto& x) { return gelu_tanh_backward(grad, x); });

  floats<1, 1>(F::kLeakyRelu, [](const auto& x, const auto& slope) {
    using V = std::decay_t<decltype(x)>;
    return x * V::blendv(slope, constant<V>(1), x > constant<V>(0));
  });
  floats<2, 1>(F::kLeakyReluBackward, [](const auto& grad, const auto& x, const auto& slope) {
    using V = std::decay_t<decltype(x)>;
    return grad * V::blendv(slope, constant<V>(1), x > constant<V>(0));
  });
  floats<1, 3>(F::kElu, [](const auto& x, const auto& a, const auto& b, const auto& c) { return elu(x, a, b, c); });
  floats<1, 2>(F::kSoftplus,
               [](const auto& x, const auto& beta, const auto& threshold) { return softplus(x, beta, threshold); });
  floats<2, 2>(F::kHardtanhBackward, [](const auto& grad, const auto& x, const auto& low, const auto& high) {
    return ((x > low) & (x < high)) & grad;
  });
  floats<2, 1>(F::kLerpNumber, [](const auto& a, const auto& b, const auto& weight) { return lerp(a, b, weight); });
  floats<3>(F::kLerp, [](const auto& a, const auto& b, const auto& weight) { return lerp(a, b, weight); });
  floats<3, 1>(F::kAddcmul,
               [](const auto& self, const auto& a, const auto& b, const auto& value) { return self + value * a * b; });
  floats<3, 1>(F::kAddcdiv,
               [](const auto& self, const auto& a, const auto& b, const auto& value) { return self + value * a / b; });
  floats<2>(F::kNegatedProduct, [](const auto& a, const auto& b) { return (a * b).neg(); });
  floats<1, 2>(F::kInverseDeviation, [](const auto& x, const auto& count, const auto& epsilon) {
    using V = std::decay_t<decltype(x)>;
    return constant<V>(1) / (x / count + epsilon).sqrt();
  });
  const auto mul_add = [](const auto& x, const auto& a, const auto& b) { return at::vec::fmadd(x, a, b); };
  floats<3>(F::kMulAdd, mul_add);
  at(F::kMulAdd, at::kFloat, Form::kNumberRight) = &vector_loop<float, 1, 2, decltype(mul_add)>;
  at(F::kMulAdd, at::kDouble, Form::kNumberRight) = &vector_loop<double, 1, 2, decltype(mul_add)>;
  halves(F::kMulAdd, at(F::kMulAdd, at::kFloat, Form::kNumberRight), Form::kNumberRight);
}

// Integers, bools and comparisons.
void Filler::fill_exact() {
  using F = Function;
  integers<1>(F::kNegate, [](auto x) { return -x; });
  integers<1>(F::kAbs, [](auto x) { return x < 0 ? -x : x; });
  integers<1>(F::kSign, [](auto x) { return (0 < x) - (x < 0); });
  for (const Function same : {F::kFloor, F::kCeil, F::kRound, F::kTrunc}) integers<1>(same, [](auto x) { return x; });
  integers<1>(F::kRelu, [](auto x) { return x < 0 ? decltype(x)(0) : x; });
  integers<3, 1>(F::kAddcmul, [](auto self, auto a, auto b, auto value) { return self + value * a * b; });
  integers<1>(F::kBitwiseNot, [](auto x) { return ~x; });
  integer_pairs(F::kAdd, [](auto a, auto b) { return a + b; });
  integer_pairs(F::kSub, [](auto a, auto b) { return a - b; });
  integer_pairs(F::kMul, [](auto a, auto b) { return a * b; });
  integer_pairs<1>(F::kAddScaled, [](auto a, auto b, auto alpha) { return a + alpha * b; });
  integer_pairs(F::kMaximum, [](auto a, auto b) { return a < b ? b : a; });
  integer_pairs(F::kMinimum, [](auto a, auto b) { return b < a ? b : a; });
  integer_pairs(F::kBitwiseAnd, [](auto a, auto b) { return a & b; });
  integer_pairs(F::kBitwiseOr, [](auto a, auto b) { return a | b; });
  integer_pairs(F::kBitwiseXor, [](auto a, auto b) { return a ^ b; });

  const auto both = [](auto a, auto b) { return a & b; };
  const auto either = [](auto a, auto b) { return a | b; };
  const auto one_of = [](auto a, auto b) { return a ^ b; };
  const auto keep = [](auto x) { return x; };
  const auto invert = [](auto x) { return x ^ 1; };
  bool_pairs(F::kAdd, either);
  bool_pairs<1>(F::kAddScaled, [](auto a, auto b, auto alpha) { return a | (b & alpha); });
  bool_pairs(F::kMul, both);
  bool_pairs(F::kMaximum, either);
  bool_pairs(F::kMinimum, both);
  bool_pairs(F::kBitwiseAnd, both);
  bool_pairs(F::kBitwiseOr, either);
  bool_pairs(F::kBitwiseXor, one_of);
  at(F::kBitwiseNot, at::kBool) = &entry_loop<uint8_t, uint8_t, 1, 0, decltype(invert)>;
  at(F::kSign, at::kBool) = &entry_loop<uint8_t, uint8_t, 1, 0, decltype(keep)>;
  at(F::kAbs, at::kBool) = at(F::kSign, at::kBool);

  predicates(F::kLogicalAnd, [](auto a, auto b) { return (a != 0) & (b != 0); });
  predicates(F::kLogicalOr, [](auto a, auto b) { return (a != 0) | (b != 0); });
  predicates(F::kEqual, [](auto a, auto b) { return a == b; });
  predicates(F::kNotEqual, [](auto a, auto b) { return a != b; });
  predicates(F::kLess, [](auto a, auto b) { return a < b; });
  predicates(F::kLessEqual, [](auto a, auto b) { return a <= b; });
  predicates(F::kGreater, [](auto a, auto b) { return a > b; });
  predicates(F::kGreaterEqual, [](auto a, auto b) { return a >= b; });
  const auto none = [](auto x) { return x == 0; };
  const auto put_none = [&]<typename T>(T) {
    at(F::kLogicalNot, kDTypeOf<T>) = &entry_loop<T, uint8_t, 1, 0, decltype(none)>;
  };
  put_none(uint8_t()), put_none(int8_t()), put_none(int16_t()), put_none(int32_t()), put_none(int64_t());
  put_none(float()), put_none(double());
  at(F::kLogicalNot, at::kBool) = at(F::kLogicalNot, at::kByte);
  halves(F::kLogicalNot, at(F::kLogicalNot, at::kFloat));
}

// What chooses between values.
void Filler::fill_selection() {
  using F = Function;
  const auto bytes = [&]<typename T>(T, std::initializer_list<at::ScalarType> dtypes) {
    for (const at::ScalarType dtype : dtypes) {
      at(F::kWhere, dtype) = &where_loop<T>;
      at(F::kMaskedFill, dtype) = &masked_fill_loop<T>;
    }
  };
  bytes(uint8_t(), {at::kByte, at::kChar, at::kBool});
  bytes(uint16_t(), {at::kShort, at::kHalf, at::kBFloat16});
  bytes(uint32_t(), {at::kInt, at::kFloat});
  bytes(uint64_t(), {at::kLong, at::kDouble});

  const auto ordered = [&]<typename T>(T, at::ScalarType dtype) {
    at(F::kClamp, dtype) = &clamp_loop<T, true, true>;
    at(F::kClampMin, dtype) = &clamp_loop<T, true, false>;
    at(F::kClampMax, dtype) = &clamp_loop<T, false, true>;
    at(F::kThreshold, dtype) = &threshold_loop<T>;
    if constexpr (std::is_integral_v<T>) at(F::kPow, dtype, Form::kNumberRight) = &integer_power<T>;
  };
  ordered(uint8_t(), at::kByte), ordered(int8_t(), at::kChar), ordered(int16_t(), at::kShort);
  ordered(int32_t(), at::kInt), ordered(int64_t(), at::kLong);
  ordered(float(), at::kFloat), ordered(float(), at::kHalf), ordered(float(), at::kBFloat16);
  ordered(double(), at::kDouble);
}

void Filler::fill_reductions() {
  using R = Reduction;
  reduce_floats<float>(at::kFloat);
  reduce_floats<float>(at::kHalf);
  reduce_floats<float>(at::kBFloat16);
  reduce_floats<double>(at::kDouble);
  reduce_extrema<uint8_t>(at::kByte);
  reduce_extrema<int8_t>(at::kChar);
  reduce_extrema<int16_t>(at::kShort);
  reduce_extrema<int32_t>(at::kInt);
  reduce_extrema<int64_t>(at::kLong);
  reduce<R::kSum, Sum<int64_t>, int64_t>(at::kLong);
  reduce<R::kProduct, Product<int64_t>, int64_t>(at::kLong);
  reduce<R::kAny, Truth<true>, uint8_t>(at::kBool);
  reduce<R::kAll, Truth<false>, uint8_t>(at::kBool);
  reduce<R::kMaximum, Truth<true>, uint8_t>(at::kBool);
  reduce<R::kMinimum, Truth<false>, uint8_t>(at::kBool);
}

}  // namespace

void fill(FunctionTable& table) {
  Filler filler{table};
  filler.fill_rounding();
  filler.fill_exact();
  filler.fill_selection();
  filler.fill_reductions();
  filler.casts_from<uint8_t>();
  filler.casts_from<int8_t>();
  filler.casts_from<int16_t>();
  filler.casts_from<int32_t>();
  filler.casts_from<int64_t>();
  filler.casts_from<bool>();
  filler.casts_from<c10::Half>();
  filler.casts_from<c10::BFloat16>();
  filler.casts_from<float>();
  filler.casts_from<double>();
}

}  // namespace hetero::ops::CPU_CAPABILITY
