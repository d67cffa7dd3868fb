// What fused kernels compute on a GPU: a function for each MapOperation and a struct for each
// ReduceOperation of backend/fused/kernel.h.
//
// This is the one definition. It is the head of each generated kernel (source.h), which NVRTC
// compiles for a GPU and tests compile as plain C++. The interpreter includes it too
// (interpreter.cu). So it includes only <math.h>, and only on a host.
//
// Formulas are ATen's. Exact operations give the CPU's bits, the others those of CUDA's math
// library. A product and a sum share a rounding only where fma is written. Generated kernels are
// compiled with --fmad=false, so fusing changes no result. The half types are storage; arithmetic
// is in float.
//
// Reducers: begin(), add(entry, its index in the row), merge(another part of the row), finish().
// Parts come in any order; of equal entries the first place counts. Sums are made in the entry's
// own type, of many partial sums, as in eager CUDA.

#pragma once

#if defined(__CUDACC__)
#define HETERO_DEVICE __device__ __forceinline__
#else
#include <math.h>
#include <string.h>
#define HETERO_DEVICE inline
#endif

namespace hetero_fused {

typedef unsigned char Bits8;
typedef unsigned short Bits16;
typedef unsigned int Bits32;
typedef unsigned long long Bits64;
struct alignas(16) Bits128 {
  Bits64 low, high;
};

// Entry types that C++ lacks.
struct Bool {
  Bits8 value;
  HETERO_DEVICE operator bool() const { return value != 0; }
};
struct Float16 {
  Bits16 bits;
};
struct BFloat16 {
  Bits16 bits;
};

template <int kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  typedef Bits8 Type;
};
template <>
struct BitsOf<2> {
  typedef Bits16 Type;
};
template <>
struct BitsOf<4> {
  typedef Bits32 Type;
};
template <>
struct BitsOf<8> {
  typedef Bits64 Type;
};
template <>
struct BitsOf<16> {
  typedef Bits128 Type;
};

// Values are stored as bits. Functions see them in their type.
template <typename T, typename Bits>
HETERO_DEVICE T as(Bits bits) {
  static_assert(sizeof(T) == sizeof(Bits), "an entry of another size");
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
HETERO_DEVICE typename BitsOf<sizeof(T)>::Type bits_of(T value) {
  return as<typename BitsOf<sizeof(T)>::Type>(value);
}

template <typename T>
struct Traits {
  static constexpr bool kFloating = false;
};
template <>
struct Traits<float> {
  static constexpr bool kFloating = true;
};
template <>
struct Traits<double> {
  static constexpr bool kFloating = true;
};

template <typename T, typename U>
struct Same {
  static constexpr bool kValue = false;
};
template <typename T>
struct Same<T, T> {
  static constexpr bool kValue = true;
};

// A number of the launch: the low bytes of floats and of what only moves bits, int64 for integers.
template <typename T>
HETERO_DEVICE T number_as(Bits64 number) {
  return as<T>(static_cast<typename BitsOf<sizeof(T)>::Type>(number));
}

// ---- types

HETERO_DEVICE float float_of(BFloat16 x) { return as<float>(static_cast<Bits32>(x.bits) << 16); }
HETERO_DEVICE BFloat16 to_bfloat16(float x) {
  const Bits32 bits = as<Bits32>(x);
  if (x != x) return {static_cast<Bits16>(bits >> 16 | 0x40)};
  return {static_cast<Bits16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
#if defined(__CUDA_ARCH__)
HETERO_DEVICE float float_of(Float16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
HETERO_DEVICE Float16 to_float16(float x) {
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
#else
HETERO_DEVICE float float_of(Float16 x) {
  const Bits32 sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 0x1f, fraction = x.bits & 0x3ff;
  if (exponent == 0x1f) return as<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24
    return sign != 0 ? -magnitude : magnitude;
  }
  return as<float>(sign | (exponent + 112) << 23 | fraction << 13);
}
HETERO_DEVICE Float16 to_float16(float x) {
  const Bits32 bits = as<Bits32>(x), magnitude = bits & 0x7fffffff;
  const Bits16 sign = static_cast<Bits16>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return {static_cast<Bits16>(sign | 0x7e00)};
  if (magnitude >= 0x47800000) return {static_cast<Bits16>(sign | 0x7c00)};  // 2^16 and more
  // Below 2^-14: adding 0.5 puts the last bit of a subnormal at the last bit of the float.
  if (magnitude < 0x38800000) {
    return {static_cast<Bits16>(sign | (as<Bits32>(as<float>(magnitude) + 0.5f) - 0x3f000000))};
  }
  return {static_cast<Bits16>(sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13))};
}
#endif

// To::of(from), for all pairs of types. Floats become bytes by way of int64, as in c10.
template <typename From>
HETERO_DEVICE From plain(From x) {
  return x;
}
HETERO_DEVICE float plain(Float16 x) { return float_of(x); }
HETERO_DEVICE float plain(BFloat16 x) { return float_of(x); }
HETERO_DEVICE Bits8 plain(Bool x) { return x.value; }

template <typename To>
struct Conversion {
  template <typename From>
  static HETERO_DEVICE To of(From x) {
    return static_cast<To>(x);
  }
};
template <>
struct Conversion<Bits8> {
  template <typename From>
  static HETERO_DEVICE Bits8 of(From x) {
    return static_cast<Bits8>(static_cast<long long>(x));
  }
};
template <>
struct Conversion<Bool> {
  template <typename From>
  static HETERO_DEVICE Bool of(From x) {
    return {static_cast<Bits8>(x != From(0))};
  }
};
template <>
struct Conversion<Float16> {
  template <typename From>
  static HETERO_DEVICE Float16 of(From x) {
    return to_float16(static_cast<float>(x));
  }
};
template <>
struct Conversion<BFloat16> {
  template <typename From>
  static HETERO_DEVICE BFloat16 of(From x) {
    return to_bfloat16(static_cast<float>(x));
  }
};
template <typename To, typename From>
HETERO_DEVICE To convert(From x) {
  return Conversion<To>::of(plain(x));
}

// To a half type and back, for formulas that ATen computes in the half type.
template <typename Half>
HETERO_DEVICE float rounded(float x) {
  return float_of(convert<Half>(x));
}

// ---- the math library, by type

#define HETERO_MATH_1(name)                                       \
  HETERO_DEVICE float math_##name(float x) { return name##f(x); } \
  HETERO_DEVICE double math_##name(double x) { return name(x); }
#define HETERO_MATH_2(name)                                                   \
  HETERO_DEVICE float math_##name(float a, float b) { return name##f(a, b); } \
  HETERO_DEVICE double math_##name(double a, double b) { return name(a, b); }
HETERO_MATH_1(fabs)
HETERO_MATH_1(floor)
HETERO_MATH_1(ceil)
HETERO_MATH_1(rint)
HETERO_MATH_1(trunc)
HETERO_MATH_1(sqrt)
HETERO_MATH_1(exp)
HETERO_MATH_1(exp2)
HETERO_MATH_1(expm1)
HETERO_MATH_1(log)
HETERO_MATH_1(log1p)
HETERO_MATH_1(log2)
HETERO_MATH_1(log10)
HETERO_MATH_1(sin)
HETERO_MATH_1(cos)
HETERO_MATH_1(tan)
HETERO_MATH_1(tanh)
HETERO_MATH_1(erf)
HETERO_MATH_1(erfc)
HETERO_MATH_2(fmod)
HETERO_MATH_2(atan2)
HETERO_MATH_2(pow)
HETERO_MATH_2(copysign)
#undef HETERO_MATH_1
#undef HETERO_MATH_2
HETERO_DEVICE float math_fma(float a, float b, float c) { return fmaf(a, b, c); }
HETERO_DEVICE double math_fma(double a, double b, double c) { return fma(a, b, c); }

template <typename T>
HETERO_DEVICE T infinity() {
  if constexpr (sizeof(T) == 8)
    return as<T>(0x7ff0000000000000ull);
  else
    return as<T>(0x7f800000u);
}
template <typename T>
HETERO_DEVICE T not_a_number() {
  if constexpr (sizeof(T) == 8)
    return as<T>(0x7ff8000000000000ull);
  else
    return as<T>(0x7fc00000u);
}

// ---- maps

// Integers wrap: they are computed as unsigned ones of 64 bits.
template <typename T>
HETERO_DEVICE T wrapped(Bits64 x) {
  return static_cast<T>(x);
}
#define HETERO_ARITHMETIC(name, operation)                                        \
  template <typename T>                                                           \
  HETERO_DEVICE T name(T a, T b) {                                                \
    if constexpr (Traits<T>::kFloating)                                           \
      return a operation b;                                                       \
    else                                                                          \
      return wrapped<T>(static_cast<Bits64>(a) operation static_cast<Bits64>(b)); \
  }
HETERO_ARITHMETIC(add, +)
HETERO_ARITHMETIC(sub, -)
HETERO_ARITHMETIC(mul, *)
#undef HETERO_ARITHMETIC
HETERO_DEVICE Bool bool_of(bool x) { return {static_cast<Bits8>(x ? 1 : 0)}; }
HETERO_DEVICE Bool add(Bool a, Bool b) { return {static_cast<Bits8>(a.value | b.value)}; }
HETERO_DEVICE Bool mul(Bool a, Bool b) { return {static_cast<Bits8>(a.value & b.value)}; }

template <typename T>
HETERO_DEVICE T div(T a, T b) {
  return a / b;
}
template <typename T>
HETERO_DEVICE T negate(T x) {
  if constexpr (Traits<T>::kFloating)
    return -x;
  else
    return wrapped<T>(0 - static_cast<Bits64>(x));
}
template <typename T>
HETERO_DEVICE T absolute(T x) {
  if constexpr (Traits<T>::kFloating)
    return math_fabs(x);
  else
    return x < 0 ? negate(x) : x;
}
HETERO_DEVICE Bool absolute(Bool x) { return x; }
template <typename T>
HETERO_DEVICE T sign(T x) {
  return static_cast<T>((T(0) < x ? 1 : 0) - (x < T(0) ? 1 : 0));
}
HETERO_DEVICE Bool sign(Bool x) { return x; }
// Integers are round already.
#define HETERO_ROUND(name, function)    \
  template <typename T>                 \
  HETERO_DEVICE T name(T x) {           \
    if constexpr (Traits<T>::kFloating) \
      return function(x);               \
    else                                \
      return x;                         \
  }
HETERO_ROUND(floor_of, math_floor)
HETERO_ROUND(ceil_of, math_ceil)
HETERO_ROUND(round_of, math_rint)
HETERO_ROUND(trunc_of, math_trunc)
#undef HETERO_ROUND
#define HETERO_FUNCTION(name, function) \
  template <typename T>                 \
  HETERO_DEVICE T name(T x) {           \
    return function(x);                 \
  }
HETERO_FUNCTION(root, math_sqrt)
HETERO_FUNCTION(exp_of, math_exp)
HETERO_FUNCTION(exp2_of, math_exp2)
HETERO_FUNCTION(expm1_of, math_expm1)
HETERO_FUNCTION(log_of, math_log)
HETERO_FUNCTION(log1p_of, math_log1p)
HETERO_FUNCTION(log2_of, math_log2)
HETERO_FUNCTION(log10_of, math_log10)
HETERO_FUNCTION(sin_of, math_sin)
HETERO_FUNCTION(cos_of, math_cos)
HETERO_FUNCTION(tan_of, math_tan)
HETERO_FUNCTION(tanh_of, math_tanh)
HETERO_FUNCTION(erf_of, math_erf)
HETERO_FUNCTION(erfc_of, math_erfc)
#undef HETERO_FUNCTION
template <typename T>
HETERO_DEVICE T reciprocal(T x) {
  return T(1) / x;
}
template <typename T>
HETERO_DEVICE T inverse_root(T x) {
  return T(1) / math_sqrt(x);
}
template <typename Half>
HETERO_DEVICE float inverse_root_in(float x) {
  return 1.0f / rounded<Half>(sqrtf(x));
}
// NaN and -0 stay.
template <typename T>
HETERO_DEVICE T relu(T x) {
  return x < T(0) ? T(0) : x;
}
template <typename T>
HETERO_DEVICE T finite_or_zero(T x) {
  return math_fabs(x) == infinity<T>() ? T(0) : x;
}
template <typename T>
HETERO_DEVICE T sigmoid(T x) {
  return T(1) / (T(1) + math_exp(-x));
}
template <typename T>
HETERO_DEVICE T silu(T x) {
  return x / (T(1) + math_exp(-x));
}
template <typename T>
HETERO_DEVICE T gelu(T x) {
  return x * T(0.5) * (T(1) + math_erf(x * T(0.70710678118654752440)));
}
template <typename T>
HETERO_DEVICE T gelu_tanh(T x) {
  const T inner = T(0.79788456080286535588) * math_fma(T(0.044715), x * x * x, x);
  return T(0.5) * x * (T(1) + math_tanh(inner));
}

// NaN wins.
template <typename T>
HETERO_DEVICE T maximum(T a, T b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}
template <typename T>
HETERO_DEVICE T minimum(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}
HETERO_DEVICE Bool maximum(Bool a, Bool b) { return add(a, b); }
HETERO_DEVICE Bool minimum(Bool a, Bool b) { return mul(a, b); }

template <typename T>
HETERO_DEVICE T add_scaled(T a, T b, T alpha) {
  if constexpr (Traits<T>::kFloating)
    return math_fma(b, alpha, a);
  else
    return add(a, mul(alpha, b));
}
HETERO_DEVICE Bool add_scaled(Bool a, Bool b, Bool alpha) { return add(a, mul(b, alpha)); }
template <typename Half>
HETERO_DEVICE float add_scaled_in(float a, float b, float alpha) {
  return a + rounded<Half>(alpha * b);
}

template <typename T>
HETERO_DEVICE T div_trunc(T a, T b) {
  return math_trunc(a / b);
}
template <typename T>
HETERO_DEVICE T div_floor(T a, T b) {
  if (b == T(0)) return a / b;
  const T mod = math_fmod(a, b);
  const T basic = a / b;
  T div = (math_fabs(basic) == infinity<T>() && math_fabs(a) != infinity<T>() ? a : a - mod) / b;
  if (mod != T(0) && (b < T(0)) != (mod < T(0))) div -= T(1);
  if (div == T(0)) return math_copysign(T(0), basic);
  const T floored = math_floor(div);
  return div - floored > T(0.5) ? floored + T(1) : floored;
}
template <typename T>
HETERO_DEVICE T fmod_of(T a, T b) {
  return math_fmod(a, b);
}
template <typename T>
HETERO_DEVICE T remainder_of(T a, T b) {
  const T mod = math_fmod(a, b);
  return mod != T(0) && (b < T(0)) != (mod < T(0)) ? mod + b : mod;
}
template <typename T>
HETERO_DEVICE T atan2_of(T a, T b) {
  return math_atan2(a, b);
}
template <typename T>
HETERO_DEVICE T power(T base, T exponent) {
  return math_pow(base, exponent);
}
// The exponent is a number; `Inner`: what products of two are rounded to.
template <typename T, typename Rounded>
HETERO_DEVICE T power_by(T x, double exponent, Rounded inner) {
  if (exponent == 0) return T(1);
  if (exponent == 1) return x;
  if (exponent == -1) return T(1) / x;
  if (exponent == 0.5) return math_sqrt(x);
  if (exponent == -0.5) return T(1) / inner(math_sqrt(x));
  if (exponent == 2) return x * x;
  if (exponent == 3) return inner(x * x) * x;
  if (exponent == -2) return T(1) / inner(x * x);
  return math_pow(x, inner(static_cast<T>(exponent)));
}
struct Unrounded {
  template <typename T>
  HETERO_DEVICE T operator()(T x) const {
    return x;
  }
};
template <typename Half>
struct RoundedTo {
  HETERO_DEVICE float operator()(float x) const { return rounded<Half>(x); }
};
HETERO_DEVICE float power_of_number(float x, double exponent) { return power_by(x, exponent, Unrounded()); }
HETERO_DEVICE double power_of_number(double x, double exponent) { return power_by(x, exponent, Unrounded()); }
template <typename Half>
HETERO_DEVICE float power_of_number_in(float x, double exponent) {
  return power_by(x, exponent, RoundedTo<Half>());
}
// In this type the CPU computes squares and roots as it does other powers.
template <>
HETERO_DEVICE float power_of_number_in<Float16>(float x, double exponent) {
  const bool is_plain = exponent == 0 || exponent == 1 || exponent == -1;
  return is_plain ? power_by(x, exponent, Unrounded()) : math_pow(x, rounded<Float16>(static_cast<float>(exponent)));
}
template <typename T>
HETERO_DEVICE T power_of_number(T x, long long exponent) {
  T result = T(1);
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = mul(result, x);
    x = mul(x, x);
  }
  return result;
}

#define HETERO_TEST(name, operation)  \
  template <typename T>               \
  HETERO_DEVICE Bool name(T a, T b) { \
    return bool_of(a operation b);    \
  }                                   \
  HETERO_DEVICE Bool name(Bool a, Bool b) { return bool_of(a.value operation b.value); }
HETERO_TEST(equal, ==)
HETERO_TEST(not_equal, !=)
HETERO_TEST(less, <)
HETERO_TEST(less_equal, <=)
HETERO_TEST(greater, >)
HETERO_TEST(greater_equal, >=)
#undef HETERO_TEST
template <typename T>
HETERO_DEVICE bool holds(T x) {
  return x != T(0);
}
HETERO_DEVICE bool holds(Bool x) { return x.value != 0; }
template <typename T>
HETERO_DEVICE Bool logical_and(T a, T b) {
  return bool_of(holds(a) && holds(b));
}
template <typename T>
HETERO_DEVICE Bool logical_or(T a, T b) {
  return bool_of(holds(a) || holds(b));
}
template <typename T>
HETERO_DEVICE Bool logical_not(T x) {
  return bool_of(!holds(x));
}
#define HETERO_BITWISE(name, operation)   \
  template <typename T>                   \
  HETERO_DEVICE T name(T a, T b) {        \
    return static_cast<T>(a operation b); \
  }                                       \
  HETERO_DEVICE Bool name(Bool a, Bool b) { return {static_cast<Bits8>(a.value operation b.value)}; }
HETERO_BITWISE(bitwise_and, &)
HETERO_BITWISE(bitwise_or, |)
HETERO_BITWISE(bitwise_xor, ^)
#undef HETERO_BITWISE
template <typename T>
HETERO_DEVICE T bitwise_not(T x) {
  return static_cast<T>(~x);
}
HETERO_DEVICE Bool bitwise_not(Bool x) { return {static_cast<Bits8>(x.value ^ 1)}; }

template <typename T>
HETERO_DEVICE T clamp_min(T x, T low) {
  if constexpr (Traits<T>::kFloating) {
    if (low != low) return not_a_number<T>();
  }
  return x < low ? low : x;
}
template <typename T>
HETERO_DEVICE T clamp_max(T x, T high) {
  if constexpr (Traits<T>::kFloating) {
    if (high != high) return not_a_number<T>();
  }
  return high < x ? high : x;
}
template <typename T>
HETERO_DEVICE T clamp(T x, T low, T high) {
  if constexpr (Traits<T>::kFloating) {
    if (low != low) return not_a_number<T>();
  }
  return clamp_max(clamp_min(x, low), high);
}
template <typename T>
HETERO_DEVICE T threshold(T x, T other, T limit, T value) {
  return x <= limit ? value : other;
}
template <typename T>
HETERO_DEVICE T leaky_relu(T x, T slope) {
  return x * (x > T(0) ? T(1) : slope);
}
template <typename T>
HETERO_DEVICE T leaky_relu_backward(T grad, T x, T slope) {
  return grad * (x > T(0) ? T(1) : slope);
}
template <typename T>
HETERO_DEVICE T elu(T x, T negative, T positive, T input) {
  return x >= T(0) ? x * positive : math_expm1(x * input) * negative;
}
template <typename T>
HETERO_DEVICE T softplus(T x, T beta, T limit) {
  return x * beta > limit ? x : math_log1p(math_exp(x * beta)) / beta;
}
template <typename T>
HETERO_DEVICE T inverse_deviation(T x, T count, T epsilon) {
  return T(1) / math_sqrt(x / count + epsilon);
}

template <typename T>
HETERO_DEVICE T sigmoid_backward(T grad, T y) {
  return grad * (T(1) - y) * y;
}
template <typename Half>
HETERO_DEVICE float sigmoid_backward_in(float grad, float y) {
  return rounded<Half>(grad * rounded<Half>(1.0f - y)) * y;
}
template <typename T>
HETERO_DEVICE T tanh_backward(T grad, T y) {
  return grad * math_fma(-y, y, T(1));
}
template <typename T>
HETERO_DEVICE T silu_backward(T grad, T x) {
  const T s = T(1) / (T(1) + math_exp(-x));
  return grad * s * math_fma(x, T(1) - s, T(1));
}
template <typename T>
HETERO_DEVICE T gelu_backward(T grad, T x) {
  const T cdf = T(0.5) * (T(1) + math_erf(x * T(0.70710678118654752440)));
  const T pdf = T(0.39894228040143267794) * math_exp(x * x * T(-0.5));
  return grad * math_fma(x, pdf, cdf);
}
template <typename T>
HETERO_DEVICE T gelu_tanh_backward(T grad, T x) {
  const T beta = T(0.79788456080286535588), kappa = T(0.044715);
  const T square = x * x;
  const T inner = math_tanh(beta * math_fma(kappa, square * x, x));
  const T left = T(0.5) * (T(1) + inner);
  const T slope = math_fma(-inner, inner, T(1));
  const T inner_slope = beta * math_fma(T(3) * kappa, square, T(1));
  return grad * math_fma(T(0.5) * x * slope, inner_slope, left);
}
template <typename T>
HETERO_DEVICE T hardtanh_backward(T grad, T x, T low, T high) {
  return x > low && x < high ? grad : T(0);
}
template <typename T>
HETERO_DEVICE T negated_product(T a, T b) {
  return -(a * b);
}
template <typename T>
HETERO_DEVICE T lerp(T start, T end, T weight) {
  const bool is_near = math_fabs(weight) < T(0.5);
  return math_fma(is_near ? weight : weight - T(1), end - start, is_near ? start : end);
}
template <typename T>
HETERO_DEVICE T addcmul(T self, T a, T b, T value) {
  if constexpr (Traits<T>::kFloating)
    return math_fma(value * a, b, self);
  else
    return add(self, mul(mul(value, a), b));
}
template <typename T>
HETERO_DEVICE T addcdiv(T self, T a, T b, T value) {
  return self + value * a / b;
}
template <typename T>
HETERO_DEVICE T mul_add(T x, T a, T b) {
  return math_fma(x, a, b);
}
template <typename T>
HETERO_DEVICE T where(Bits8 condition, T yes, T no) {
  return condition != 0 ? yes : no;
}
template <typename T>
HETERO_DEVICE T masked_fill(T x, Bits8 mask, T value) {
  return mask != 0 ? value : x;
}

// Norms of any order.
template <typename T>
HETERO_DEVICE T norm_term(T x, double order) {
  if (order == 2) return x * x;
  if (order == 1 || fabs(order) == infinity<double>()) return math_fabs(x);
  if (order == 0) return x == T(0) ? T(0) : T(1);
  return math_pow(math_fabs(x), static_cast<T>(order));
}
template <typename T>
HETERO_DEVICE T norm_peak(T x, double order) {
  return order < 0 ? -math_fabs(x) : math_fabs(x);
}
template <typename T>
HETERO_DEVICE T norm_result(T sum, T peak, double order) {
  if (fabs(order) == infinity<double>()) return math_fabs(peak);
  if (order == 0 || order == 1) return sum;
  if (order == 2) return math_sqrt(sum);
  return math_pow(sum, static_cast<T>(1 / order));
}

// ---- reducers

typedef long long Index64;

// The type in which integers are summed.
template <typename T>
struct Accumulated {
  typedef Index64 Type;
};
template <>
struct Accumulated<float> {
  typedef float Type;
};
template <>
struct Accumulated<double> {
  typedef double Type;
};

template <typename T>
struct Sum {
  typedef T Entry;
  typename Accumulated<T>::Type sum;
  HETERO_DEVICE void begin() { sum = 0; }
  HETERO_DEVICE void add(T x, Index64) { sum = hetero_fused::add<typename Accumulated<T>::Type>(sum, x); }
  HETERO_DEVICE void merge(const Sum& other) { sum = hetero_fused::add(sum, other.sum); }
  HETERO_DEVICE T finish() const { return static_cast<T>(sum); }
};

template <typename T>
struct Product {
  typedef T Entry;
  T product;
  HETERO_DEVICE void begin() { product = T(1); }
  HETERO_DEVICE void add(T x, Index64) { product = mul(product, x); }
  HETERO_DEVICE void merge(const Product& other) { product = mul(product, other.product); }
  HETERO_DEVICE T finish() const { return product; }
};

// The least and the greatest entry.
template <typename T>
HETERO_DEVICE T lowest() {
  if constexpr (Traits<T>::kFloating) {
    return -infinity<T>();
  } else {
    const bool is_signed = static_cast<T>(-1) < static_cast<T>(0);
    return is_signed ? wrapped<T>(Bits64(1) << (8 * sizeof(T) - 1)) : T(0);
  }
}
template <typename T>
HETERO_DEVICE T highest() {
  if constexpr (Traits<T>::kFloating)
    return infinity<T>();
  else
    return static_cast<T>(~lowest<T>());
}
template <>
HETERO_DEVICE Bool lowest<Bool>() {
  return {0};
}
template <>
HETERO_DEVICE Bool highest<Bool>() {
  return {1};
}

// For bools these are any and all.
template <typename T>
struct Maximum {
  typedef T Entry;
  T best;
  HETERO_DEVICE void begin() { best = lowest<T>(); }
  HETERO_DEVICE void add(T x, Index64) { best = maximum(best, x); }
  HETERO_DEVICE void merge(const Maximum& other) { best = maximum(best, other.best); }
  HETERO_DEVICE T finish() const { return best; }
};
template <typename T>
struct Minimum {
  typedef T Entry;
  T best;
  HETERO_DEVICE void begin() { best = highest<T>(); }
  HETERO_DEVICE void add(T x, Index64) { best = minimum(best, x); }
  HETERO_DEVICE void merge(const Minimum& other) { best = minimum(best, other.best); }
  HETERO_DEVICE T finish() const { return best; }
};
// Passes over NaNs.
template <typename T>
struct Peak {
  typedef T Entry;
  T best;
  HETERO_DEVICE void begin() { best = lowest<T>(); }
  HETERO_DEVICE void add(T x, Index64) { best = best < x ? x : best; }
  HETERO_DEVICE void merge(const Peak& other) { add(other.best, 0); }
  HETERO_DEVICE T finish() const { return best; }
};

// The first place of the best entry, or of the first NaN. -1 in an empty row.
template <typename T, bool kGreatest>
struct Place {
  typedef T Entry;
  T best;
  Index64 place;
  HETERO_DEVICE void begin() {
    best = T(0);
    place = -1;
  }
  HETERO_DEVICE void add(T x, Index64 index) {
    if (place < 0 || beats(x, index)) {
      best = x;
      place = index;
    }
  }
  HETERO_DEVICE bool beats(T x, Index64 index) const {
    if (x != x || best != best) return x != x && (best == best || index < place);
    if (x == best) return index < place;
    return kGreatest ? x > best : x < best;
  }
  HETERO_DEVICE void merge(const Place& other) {
    if (other.place >= 0) add(other.best, other.place);
  }
  HETERO_DEVICE Index64 finish() const { return place; }
};
template <typename T>
struct ArgMaximum : Place<T, true> {
  HETERO_DEVICE void merge(const ArgMaximum& other) { Place<T, true>::merge(other); }
};
template <typename T>
struct ArgMinimum : Place<T, false> {
  HETERO_DEVICE void merge(const ArgMinimum& other) { Place<T, false>::merge(other); }
};

// The sum of (x - mean)^2: Welford's update, and Chan's for parts.
template <typename T>
struct SquaredDeviation {
  typedef T Entry;
  T count, mean, squares;
  HETERO_DEVICE void begin() { count = mean = squares = T(0); }
  HETERO_DEVICE void add(T x, Index64) {
    count += T(1);
    const T distance = x - mean;
    mean += distance / count;
    squares = math_fma(distance, x - mean, squares);
  }
  HETERO_DEVICE void merge(const SquaredDeviation& other) {
    if (other.count == T(0)) return;
    const T both = count + other.count, share = other.count / both, distance = other.mean - mean;
    mean = math_fma(distance, share, mean);
    squares += other.squares + distance * distance * count * share;
    count = both;
  }
  HETERO_DEVICE T finish() const { return squares; }
};

// With the entry of another row value.
template <typename T>
struct SquaredDistance {
  typedef T Entry;
  T sum, center;
  HETERO_DEVICE void begin_with(T parameter) {
    sum = T(0);
    center = parameter;
  }
  HETERO_DEVICE void add(T x, Index64) { sum = math_fma(x - center, x - center, sum); }
  HETERO_DEVICE void merge(const SquaredDistance& other) { sum += other.sum; }
  HETERO_DEVICE T finish() const { return sum; }
};
template <typename T>
struct SumExp {
  typedef T Entry;
  T sum, peak;
  HETERO_DEVICE void begin_with(T parameter) {
    sum = T(0);
    peak = parameter;
  }
  HETERO_DEVICE void add(T x, Index64) { sum += math_exp(x - peak); }
  HETERO_DEVICE void merge(const SumExp& other) { sum += other.sum; }
  HETERO_DEVICE T finish() const { return sum; }
};
// The entry at an index of the row; zero if the row has no such index.
template <typename T>
struct Pick {
  typedef T Entry;
  T entry;
  Index64 index;
  bool found;
  HETERO_DEVICE void begin_with(Index64 parameter) {
    entry = T{};
    index = parameter;
    found = false;
  }
  HETERO_DEVICE void add(T x, Index64 at) {
    if (at != index) return;
    entry = x;
    found = true;
  }
  HETERO_DEVICE void merge(const Pick& other) {
    if (other.found) *this = other;
  }
  HETERO_DEVICE T finish() const { return entry; }
};

}  // namespace hetero_fused
