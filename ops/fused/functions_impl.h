// The vector functions of one CPU capability. Included by functions_avx512.cpp, functions_avx2.cpp and
// functions_default.cpp only, each compiled with CPU_CAPABILITY and the machine flags that PyTorch compiles its own
// kernels with.
//
// Everything here has internal linkage, but for fill(): an inline function that two files shared could be linked in
// its AVX-512 version and then run on a lesser machine.
//
// A formula is written as PyTorch writes it in ATen/native/cpu, operation for operation, since each operation rounds;
// and as there, the compiler makes one rounding of a product and a sum (-ffp-contract=fast, GCC's default).

#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/TypeCast.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "backend/fused/gelu.h"
#include "ops/fused/functions.h"

namespace hetero::ops::CPU_CAPABILITY {
namespace {

using at::vec::Vectorized;
using backend::EntryType;
using backend::MapFunction;
using backend::Number;
using backend::Reducer;

template <typename T>
T number_as(const Number& number) {
  if constexpr (std::is_same_v<T, float>) {
    return number.f32;
  } else if constexpr (std::is_same_v<T, double>) {
    return number.f64;
  } else if constexpr (std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>) {
    return T(static_cast<unsigned short>(number.bits), T::from_bits());
  } else {
    return static_cast<T>(number.i64);
  }
}

template <typename T>
inline constexpr at::ScalarType kDTypeOf = c10::CppTypeToScalarType<T>::value;

// ---- loops --------------------------------------------------------------------------------------------------------

// `F` takes kInputs vectors, then kNumbers vectors that are full of one number each.
template <typename T, int kInputs, int kNumbers, typename F>
void vector_loop(void* out, const void* const* in, const Number* numbers, int64_t n) {
  using Vec = Vectorized<T>;
  const F function;
  [&]<size_t... I, size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>) {
    const Vec filled[kNumbers + 1] = {Vec(number_as<T>(numbers[J]))..., Vec(T(0))};
    const T* const inputs[] = {static_cast<const T*>(in[I])...};
    T* const result = static_cast<T*>(out);
    int64_t i = 0;
    for (; i + Vec::size() <= n; i += Vec::size()) {
      Vec(function(Vec::loadu(inputs[I] + i)..., filled[J]...)).store(result + i);
    }
    if (i < n) {
      const auto rest = static_cast<int>(n - i);
      Vec(function(Vec::loadu(inputs[I] + i, rest)..., filled[J]...)).store(result + i, rest);
    }
  }(std::make_index_sequence<kInputs>(), std::make_index_sequence<kNumbers>());
}

// The same on single entries, for what rounds nowhere; the compiler makes vectors of it. `out` may be an input: same entry.
template <typename T, typename R, int kInputs, int kNumbers, typename F>
void entry_loop(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const F function;
  [&]<size_t... I, size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>) {
    const T filled[kNumbers + 1] = {number_as<T>(numbers[J])..., T(0)};
    const T* const inputs[] = {static_cast<const T*>(in[I])...};
    R* const result = static_cast<R*>(out);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) result[i] = static_cast<R>(function(inputs[I][i]..., filled[J]...));
  }(std::make_index_sequence<kInputs>(), std::make_index_sequence<kNumbers>());
}

// The second argument before the first.
template <typename F>
struct Swapped {
  template <typename A, typename B, typename... Rest>
  auto operator()(const A& a, const B& b, const Rest&... rest) const {
    return F()(b, a, rest...);
  }
};

// ---- casts --------------------------------------------------------------------------------------------------------

template <typename From, typename To>
void cast_loop(void* out, const void* const* in, const Number*, int64_t n) {
  const From* const from = static_cast<const From*>(in[0]);
  To* const to = static_cast<To*>(out);
  if constexpr (c10::is_reduced_floating_point_v<From> && std::is_same_v<To, float>) {
    constexpr int kHalfStep = Vectorized<float>::size();
    constexpr int kStep = Vectorized<From>::size();
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) {
      const auto [low, high] = at::vec::convert_to_float<From>(Vectorized<From>::loadu(from + i));
      low.store(to + i);
      high.store(to + i + kHalfStep);
    }
    if (i < n) {
      const auto rest = static_cast<int>(n - i);
      const auto [low, high] = at::vec::convert_to_float<From>(Vectorized<From>::loadu(from + i, rest));
      low.store(to + i, std::min(rest, kHalfStep));
      if (rest > kHalfStep) high.store(to + i + kHalfStep, rest - kHalfStep);
    }
  } else if constexpr (std::is_same_v<From, float> && c10::is_reduced_floating_point_v<To>) {
    constexpr int kHalfStep = Vectorized<float>::size();
    constexpr int kStep = Vectorized<To>::size();
    using Vec = Vectorized<float>;
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) {
      at::vec::convert_from_float<To>(Vec::loadu(from + i), Vec::loadu(from + i + kHalfStep)).store(to + i);
    }
    if (i < n) {
      const auto rest = static_cast<int>(n - i);
      const Vec low = Vec::loadu(from + i, std::min(rest, kHalfStep));
      const Vec high = rest > kHalfStep ? Vec::loadu(from + i + kHalfStep, rest - kHalfStep) : Vec(0.0f);
      at::vec::convert_from_float<To>(low, high).store(to + i, rest);
    }
  } else if constexpr (std::is_same_v<From, c10::Half> || std::is_same_v<To, c10::Half>) {
    // By way of float, as c10 converts; entry by entry it is slow.
    float block[256];
    Number none[1] = {};
    for (int64_t i = 0; i < n; i += 256) {
      const int64_t count = std::min<int64_t>(256, n - i);
      const void* const source[] = {from + i};
      const void* const middle[] = {block};
      cast_loop<From, float>(block, source, none, count);
      cast_loop<float, To>(to + i, middle, none, count);
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) to[i] = c10::convert<To>(from[i]);
  }
}

// Rounds to T and back, for formulas that PyTorch computes in T, rounding after each operation.
template <typename T>
Vectorized<float> rounded(const Vectorized<float>& x) {
  return std::get<0>(at::vec::convert_to_float<T>(at::vec::convert_from_float<T>(x, x)));
}

// Without vector instructions PyTorch computes half dtypes entry by entry, rounding after each operation.
#if defined(CPU_CAPABILITY_DEFAULT)
constexpr bool kRoundsHalvesStepwise = true;
#else
constexpr bool kRoundsHalvesStepwise = false;
#endif

// ---- formulas that are longer than a line ----------------------------------------------------------------------------

template <typename Vec>
Vec div_floor(const Vec& a, const Vec& b) {
  using T = typename Vec::value_type;
  const Vec zero(0), one(1), infinity(std::numeric_limits<T>::infinity());
  const Vec basic = a / b;
  const Vec mod = a.fmod(b);
  // SLEEF's fmod is wrong where the quotient overflows.
  Vec div = Vec::blendv(a - mod, a, (basic.abs() == infinity) & (a.abs() != infinity)) / b;
  Vec mask = (mod != zero) & ((b < zero) ^ (mod < zero));
  div = Vec::blendv(div, div - one, mask);
  Vec floored = div.floor();
  mask = (div - floored) > Vec(T(0.5));
  floored = Vec::blendv(floored, floored + one, mask);
  floored = Vec::blendv(floored, zero.copysign(basic), div == zero);
  return Vec::blendv(floored, basic, b == zero);
}

template <typename Vec>
Vec remainder(const Vec& a, const Vec& b) {
  const Vec mod = a.fmod(b);
  const Vec zero(0);
  const Vec mask = (mod != zero) & ((b < zero) ^ (mod < zero));
  return Vec::blendv(mod, mod + b, mask);
}

template <typename Vec>
Vec sign(const Vec& x) {
  const Vec zero(0), one(1);
  return Vec::blendv(zero, one, zero < x) - Vec::blendv(zero, one, x < zero);
}

template <typename Vec>
Vec lerp(const Vec& start, const Vec& end, const Vec& weight) {
  using T = typename Vec::value_type;
  const Vec mask = weight.abs() < Vec(T(0.5));
  const Vec coefficient = Vec::blendv(weight - Vec(1), weight, mask);
  const Vec base = Vec::blendv(end, start, mask);
  return at::vec::fmadd(coefficient, end - start, base);
}

constexpr double kGeluBeta = M_SQRT2 * M_2_SQRTPI * 0.5;
constexpr double kGeluKappa = 0.044715;

// erf(x / sqrt 2), within 16 * 2^-26 in float32 (backend/fused/gelu.h).
template <typename Vec>
Vec gelu_erf(const Vec& x) {
  using T = typename Vec::value_type;
  if constexpr (std::is_same_v<T, float>) {
    const Vec place = at::vec::minimum(x * x * Vec(backend::kGeluScale), Vec(2.0f)) + Vec(-1.0f);
    Vec sum(backend::kGeluCoefficients[0]);
    for (size_t i = 1; i < std::size(backend::kGeluCoefficients); ++i) {
      sum = at::vec::fmadd(sum, place, Vec(backend::kGeluCoefficients[i]));
    }
    return at::vec::clamp(x * sum, Vec(-1.0f), Vec(1.0f));
  } else {
    return (x * Vec(T(M_SQRT1_2))).erf();
  }
}

template <typename Vec>
Vec gelu(const Vec& x) {
  using T = typename Vec::value_type;
  const Vec half = x * Vec(T(0.5));
  if constexpr (std::is_same_v<T, float>) return at::vec::fmadd(half, gelu_erf(x), half);
  return half * (Vec(T(1)) + gelu_erf(x));
}

template <typename Vec>
Vec gelu_tanh(const Vec& x) {
  using T = typename Vec::value_type;
  const Vec cube = x * x * x;
  const Vec inner = Vec(T(kGeluBeta)) * (x + Vec(T(kGeluKappa)) * cube);
  return Vec(T(0.5)) * x * (Vec(T(1)) + inner.tanh());
}

template <typename Vec>
Vec gelu_backward(const Vec& grad, const Vec& x) {
  using T = typename Vec::value_type;
  const Vec cdf = Vec(T(0.5)) * (Vec(T(1)) + gelu_erf(x));
  const Vec pdf = Vec(T(M_2_SQRTPI * M_SQRT1_2 * 0.5)) * (x * x * Vec(T(-0.5))).exp();
  return grad * (cdf + x * pdf);
}

template <typename Vec>
Vec gelu_tanh_backward(const Vec& grad, const Vec& x) {
  using T = typename Vec::value_type;
  const Vec beta((T(kGeluBeta))), kappa((T(kGeluKappa))), one(T(1)), half(T(0.5));
  const Vec square = x * x;
  const Vec cube = x * x * x;
  const Vec inner = (beta * (x + kappa * cube)).tanh();
  const Vec left = half * x;
  const Vec right = one + inner;
  const Vec left_derivative = half * right;
  const Vec tanh_derivative = one - inner * inner;
  const Vec inner_derivative = beta * (one + Vec(T(3)) * kappa * square);
  const Vec right_derivative = left * tanh_derivative * inner_derivative;
  return grad * (left_derivative + right_derivative);
}

template <typename Vec>
Vec silu_backward(const Vec& grad, const Vec& x) {
  const Vec one(1);
  const Vec sigmoid = one / (one + x.neg().exp());
  return grad * sigmoid * (one + x * (one - sigmoid));
}

template <typename Vec>
Vec elu(const Vec& x, const Vec& negative, const Vec& positive, const Vec& input) {
  const Vec mask = x >= Vec(0);
  return Vec::blendv((x * input).expm1() * negative, x * positive, mask);
}

template <typename Vec>
Vec softplus(const Vec& x, const Vec& beta, const Vec& threshold) {
  return Vec::blendv((x * beta).exp().log1p() / beta, x, (x * beta) > threshold);
}

// The parts of a norm of any order (numbers[0].f64): the terms of its sum, the terms of its maximum, and what follows
// from both. They are one program for all orders, since the order is a number.
template <typename T>
void norm_term(void* out, const void* const* in, const Number* numbers, int64_t n) {
  using Vec = Vectorized<T>;
  const double order = numbers[0].f64;
  const T* const x = static_cast<const T*>(in[0]);
  T* const result = static_cast<T*>(out);
  const auto loop = [&](auto function) {
    int64_t i = 0;
    for (; i + Vec::size() <= n; i += Vec::size()) function(Vec::loadu(x + i)).store(result + i);
    if (i < n) function(Vec::loadu(x + i, n - i)).store(result + i, static_cast<int>(n - i));
  };
  if (order == 2) return loop([](const Vec& x) { return x * x; });
  if (order == 1 || std::isinf(order)) return loop([](const Vec& x) { return x.abs(); });
  if (order == 0) return loop([](const Vec& x) { return Vec::blendv(Vec(T(1)), Vec(T(0)), x == Vec(T(0))); });
  return loop([filled = Vec(static_cast<T>(order))](const Vec& x) { return x.abs().pow(filled); });
}

template <typename T>
void norm_peak(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const bool least = numbers[0].f64 < 0;
  const T* const x = static_cast<const T*>(in[0]);
  T* const result = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) result[i] = least ? -std::abs(x[i]) : std::abs(x[i]);
}

template <typename T>
void norm_result(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const double order = numbers[0].f64;
  const T* const sum = static_cast<const T*>(in[0]);
  const T* const peak = static_cast<const T*>(in[1]);
  T* const result = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) {
    result[i] = std::isinf(order)          ? std::abs(peak[i])
                : order == 0 || order == 1 ? sum[i]
                : order == 2               ? std::sqrt(sum[i])
                                           : std::pow(sum[i], static_cast<T>(1 / order));
  }
}

// ---- MKL ------------------------------------------------------------------------------------------------------------

// VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE, as ATen/cpu/vml.h.
constexpr int64_t kVmlMode = 0x2 | 0x140000 | 0x100;

// Found when the table is made.
template <Function function>
VmlFloat vml_float = nullptr;
template <Function function>
VmlDouble vml_double = nullptr;

template <Function function>
void run_vml_float(void* out, const void* const* in, const Number*, int64_t n) {
  vml_float<function>(static_cast<int>(n), static_cast<const float*>(in[0]), static_cast<float*>(out), kVmlMode);
}
template <Function function>
void run_vml_double(void* out, const void* const* in, const Number*, int64_t n) {
  vml_double<function>(static_cast<int>(n), static_cast<const double*>(in[0]), static_cast<double*>(out), kVmlMode);
}

template <typename T, typename Storage>
void square_root(void* out, const void* const* in, const Number* numbers, int64_t n) {
  if constexpr (std::is_same_v<Storage, float>) {
    if (vml_float<Function::kSqrt> != nullptr) return run_vml_float<Function::kSqrt>(out, in, numbers, n);
  } else if constexpr (std::is_same_v<Storage, double>) {
    if (vml_double<Function::kSqrt> != nullptr) return run_vml_double<Function::kSqrt>(out, in, numbers, n);
  }
  const auto root = [](const auto& x) { return x.sqrt(); };
  vector_loop<T, 1, 0, decltype(root)>(out, in, numbers, n);
}

// x ** exponent; `Storage` is what PyTorch computes in (a half dtype, or T), the exponent a double.
template <typename T, typename Storage>
void power(void* out, const void* const* in, const Number* numbers, int64_t n) {
  using Vec = Vectorized<T>;
  const double exponent = numbers[0].f64;
  const auto loop = [&](auto function) {
    const T* const x = static_cast<const T*>(in[0]);
    T* const result = static_cast<T*>(out);
    int64_t i = 0;
    for (; i + Vec::size() <= n; i += Vec::size()) function(Vec::loadu(x + i)).store(result + i);
    if (i < n) function(Vec::loadu(x + i, n - i)).store(result + i, static_cast<int>(n - i));
  };
  const auto product = [](const Vec& a, const Vec& b) {
    if constexpr (std::is_same_v<T, Storage>) {
      return a * b;
    } else {
      return rounded<Storage>(a * b);
    }
  };
  if (exponent == 0) return loop([](const Vec&) { return Vec(T(1)); });
  if (exponent == 1) return loop([](const Vec& x) { return x; });
  if (exponent == -1) return loop([](const Vec& x) { return x.reciprocal(); });
  if constexpr (!std::is_same_v<Storage, c10::Half>) {
    if (exponent == 0.5) return square_root<T, Storage>(out, in, numbers, n);
    if (exponent == -0.5) {
      if constexpr (kRoundsHalvesStepwise && !std::is_same_v<T, Storage>) {
        return loop([](const Vec& x) { return rounded<Storage>(x.sqrt()).reciprocal(); });
      }
      return loop([](const Vec& x) { return x.rsqrt(); });
    }
    if (exponent == 2) return loop([](const Vec& x) { return x * x; });
    if (exponent == 3) return loop([&](const Vec& x) { return product(x, x) * x; });
    if (exponent == -2) return loop([&](const Vec& x) { return product(x, x).reciprocal(); });
  }
  const Vec filled(static_cast<T>(static_cast<Storage>(exponent)));
  return loop([&](const Vec& x) { return x.pow(filled); });
}

// exp_u20 takes a NaN for a number; a clamp lets it through, and e^x is never below x.
template <typename Vec>
Vec exp_fast(const Vec& x) {
  return at::vec::clamp_min(x, x.exp_u20());
}

// ---- reducers ---------------------------------------------------------------------------------------------------------

template <typename T, typename State, typename F>
Vectorized<T> fold_lanes(const T* in, int64_t n, T neutral, const F& function) {
  using Vec = Vectorized<T>;
  constexpr int64_t kWidth = Vec::size();
  Vec lanes[4] = {Vec(neutral), Vec(neutral), Vec(neutral), Vec(neutral)};
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    for (int k = 0; k < 4; ++k) lanes[k] = function(lanes[k], Vec::loadu(in + i + k * kWidth));
  }
  for (; i + kWidth <= n; i += kWidth) lanes[0] = function(lanes[0], Vec::loadu(in + i));
  if (i < n) {
    const int64_t rest = n - i;
    lanes[1] = function(lanes[1], Vec::set(Vec(neutral), Vec::loadu(in + i, rest), rest));
  }
  return function(function(lanes[0], lanes[1]), function(lanes[2], lanes[3]));
}

// The lanes of one vector made one.
template <typename T, typename F>
T across(const F& function, const Vectorized<T>& vector) {
  using Vec = Vectorized<T>;
#if !defined(CPU_CAPABILITY_DEFAULT)
  if constexpr (std::is_same_v<T, float>) return at::vec::vec_reduce_all<T>(function, vector);
#endif
  T entries[Vec::size()];
  vector.store(entries);
  for (int width = Vec::size() / 2; width > 0; width /= 2) {
    Vec low = Vec::loadu(entries, width), high = Vec::loadu(entries + width, width);
    function(low, high).store(entries, width);
  }
  return entries[0];
}

template <typename T, typename F>
T fold(const T* in, int64_t n, T neutral, const F& function) {
  return across<T>(function, fold_lanes<T, T>(in, n, neutral, function));
}

// Sums of a block are made in lanes of T, sums of blocks in double: what is lost does not grow with the row.
template <typename T>
struct Sum {
  using State = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
  using Result = T;
  static void begin(State& state) { state = 0; }
  static void add(State& state, const T* in, int64_t n, int64_t) {
    if constexpr (std::is_floating_point_v<T>) {
      state += fold<T>(in, n, T(0), [](const auto& a, const auto& b) { return a + b; });
    } else {
      int64_t sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += in[i];
      state += sum;
    }
  }
  static void merge(State& state, const State& later) { state += later; }
  static Result finish(const State& state) { return static_cast<T>(state); }
};

template <typename T>
struct Product {
  using State = T;
  using Result = T;
  static void begin(State& state) { state = 1; }
  static void add(State& state, const T* in, int64_t n, int64_t) {
    if constexpr (std::is_floating_point_v<T>) {
      state *= fold<T>(in, n, T(1), [](const auto& a, const auto& b) { return a * b; });
    } else {
      for (int64_t i = 0; i < n; ++i) state *= in[i];
    }
  }
  static void merge(State& state, const State& later) { state *= later; }
  static Result finish(const State& state) { return state; }
};

template <typename T, bool kGreatest>
struct Extremum {
  using State = T;
  using Result = T;
  static constexpr T neutral() {
    if constexpr (std::is_floating_point_v<T>) {
      return kGreatest ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
    } else {
      return kGreatest ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
    }
  }
  // NaN wins.
  static T better(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (b != b) return b;
    }
    return kGreatest ? (a < b ? b : a) : (b < a ? b : a);
  }
  static void begin(State& state) { state = neutral(); }
  static void add(State& state, const T* in, int64_t n, int64_t) { state = better(state, of(in, n)); }
  static T of(const T* in, int64_t n) {
    if constexpr (std::is_floating_point_v<T>) {
      return fold<T>(in, n, neutral(), [](const auto& a, const auto& b) {
        return kGreatest ? at::vec::maximum(a, b) : at::vec::minimum(a, b);
      });
    } else {
      T best = neutral();
      for (int64_t i = 0; i < n; ++i) best = kGreatest ? (best < in[i] ? in[i] : best) : (in[i] < best ? in[i] : best);
      return best;
    }
  }
  static void merge(State& state, const State& later) { state = better(state, later); }
  static Result finish(const State& state) { return state; }
};

// NaNs are passed over: what subtracts the peak finds them itself.
template <typename T>
struct Peak : Extremum<T, true> {
  static void add(T& state, const T* in, int64_t n, int64_t) {
    const T peak = fold<T>(in, n, Extremum<T, true>::neutral(),
                           [](const auto& best, const auto& x) { return at::vec::clamp_min(best, x); });
    if (state < peak) state = peak;
  }
  static void merge(T& state, const T& later) {
    if (state < later) state = later;
  }
};

// Sums of a function of entry and parameter, in lanes of T for a block and in double for blocks.
template <typename T, typename F>
struct SumWith {
  struct State {
    double sum;
    T parameter;
  };
  using Result = T;
  using Parameter = T;
  static void begin_with(State& state, const T& parameter) { state = {0, parameter}; }
  static void add(State& state, const T* in, int64_t n, int64_t) {
    using Vec = Vectorized<T>;
    constexpr int64_t kWidth = Vec::size();
    const F function;
    const Vec parameter(state.parameter);
    Vec lanes[4] = {Vec(T(0)), Vec(T(0)), Vec(T(0)), Vec(T(0))};
    int64_t i = 0;
    for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
      for (int k = 0; k < 4; ++k) lanes[k] = function(lanes[k], Vec::loadu(in + i + k * kWidth), parameter);
    }
    for (; i + kWidth <= n; i += kWidth) lanes[0] = function(lanes[0], Vec::loadu(in + i), parameter);
    if (i < n) {
      const int64_t rest = n - i;
      lanes[1] = Vec::set(lanes[1], function(lanes[1], Vec::loadu(in + i, rest), parameter), rest);
    }
    const auto add = [](const Vec& a, const Vec& b) { return a + b; };
    state.sum += across<T>(add, (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
  }
  static void merge(State& state, const State& later) { state.sum += later.sum; }
  static Result finish(const State& state) { return static_cast<T>(state.sum); }
};
struct AddSquaredDistance {
  template <typename Vec>
  Vec operator()(const Vec& sum, const Vec& x, const Vec& center) const {
    const Vec distance = x - center;
    return at::vec::fmadd(distance, distance, sum);
  }
};
struct AddExpFast {
  template <typename Vec>
  Vec operator()(const Vec& sum, const Vec& x, const Vec& peak) const {
    return sum + exp_fast(x - peak);
  }
};

// The first place of the extremum; the first NaN, where there is one.
template <typename T, bool kGreatest>
struct Place {
  struct State {
    T best;
    int64_t place;  // -1 before the first entry
  };
  using Result = int64_t;
  static bool beats(T challenger, T best) {
    if constexpr (std::is_floating_point_v<T>) {
      if (best != best) return false;
      if (challenger != challenger) return true;
    }
    return kGreatest ? challenger > best : challenger < best;
  }
  static void begin(State& state) { state = {T(0), -1}; }
  static void add(State& state, const T* in, int64_t n, int64_t index) {
    if (n == 0) return;
    const T best = Extremum<T, kGreatest>::of(in, n);
    if (state.place >= 0 && !beats(best, state.best)) return;
    int64_t i = 0;
    while (i + 1 < n && !(in[i] == best || (best != best && in[i] != in[i]))) ++i;
    state = {best, index + i};
  }
  static void merge(State& state, const State& later) {
    if (later.place >= 0 && (state.place < 0 || beats(later.best, state.best))) state = later;
  }
  static Result finish(const State& state) { return state.place; }
};

template <bool kAnyOf>
struct Truth {
  static constexpr EntryType kEntry = EntryType::kBool;
  using State = uint8_t;
  using Result = uint8_t;
  static void begin(State& state) { state = kAnyOf ? 0 : 1; }
  static void add(State& state, const uint8_t* in, int64_t n, int64_t) {
    uint8_t found = kAnyOf ? 0 : 1;
    for (int64_t i = 0; i < n; ++i) found = kAnyOf ? found | in[i] : found & in[i];
    merge(state, found);
  }
  static void merge(State& state, const State& later) { state = kAnyOf ? state | later : state & later; }
  static Result finish(const State& state) { return state; }
};

// Blocks are measured around their own means and joined as Chan et al. do.
template <typename T>
struct SquaredDeviation {
  struct State {
    double count, mean, squares;
  };
  using Result = T;
  static void begin(State& state) { state = {0, 0, 0}; }
  static void add(State& state, const T* in, int64_t n, int64_t) {
    if (n == 0) return;
    using Vec = Vectorized<T>;
    const T mean = fold<T>(in, n, T(0), [](const auto& a, const auto& b) { return a + b; }) / static_cast<T>(n);
    // Four lanes of vectors of (x - mean)^2; entries that are not there are given as the mean.
    const Vec center(mean);
    Vec lanes[4] = {Vec(T(0)), Vec(T(0)), Vec(T(0)), Vec(T(0))};
    const auto gather = [&](Vec& lane, const Vec& x) {
      const Vec distance = x - center;
      lane = at::vec::fmadd(distance, distance, lane);
    };
    constexpr int64_t kWidth = Vec::size();
    int64_t i = 0;
    for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
      for (int k = 0; k < 4; ++k) gather(lanes[k], Vec::loadu(in + i + k * kWidth));
    }
    for (; i + kWidth <= n; i += kWidth) gather(lanes[0], Vec::loadu(in + i));
    if (i < n) gather(lanes[1], Vec::set(center, Vec::loadu(in + i, n - i), n - i));
    const auto add = [](const Vec& a, const Vec& b) { return a + b; };
    const T squares = across<T>(add, (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
    merge(state, {static_cast<double>(n), mean, squares});
  }
  static void merge(State& state, const State& later) {
    if (later.count == 0) return;
    const double count = state.count + later.count;
    const double distance = later.mean - state.mean;
    state.mean += distance * (later.count / count);
    state.squares += later.squares + distance * distance * (state.count * later.count / count);
    state.count = count;
  }
  static Result finish(const State& state) { return static_cast<T>(state.squares); }
};

template <typename R>
concept HasParameter = requires { typename R::Parameter; };

template <typename R>
constexpr auto begin_of() -> void (*)(void*) {
  if constexpr (HasParameter<R>) {
    return nullptr;
  } else {
    return [](void* state) { R::begin(*static_cast<typename R::State*>(state)); };
  }
}
template <typename R>
constexpr auto begin_with_of() -> void (*)(void*, const void*) {
  if constexpr (HasParameter<R>) {
    return [](void* state, const void* parameter) {
      typename R::Parameter value;
      std::memcpy(&value, parameter, sizeof(value));
      R::begin_with(*static_cast<typename R::State*>(state), value);
    };
  } else {
    return nullptr;
  }
}
template <typename R>
constexpr int32_t parameter_bytes_of() {
  if constexpr (HasParameter<R>) return sizeof(typename R::Parameter);
  return 0;
}

template <typename R, typename T>
constexpr EntryType entry_type_of() {
  if constexpr (requires { R::kEntry; }) return R::kEntry;
  if constexpr (std::is_same_v<T, float>) return EntryType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return EntryType::kFloat64;
  if constexpr (std::is_same_v<T, int8_t>) return EntryType::kInt8;
  if constexpr (std::is_same_v<T, int16_t>) return EntryType::kInt16;
  if constexpr (std::is_same_v<T, int32_t>) return EntryType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return EntryType::kInt64;
  static_assert(std::is_arithmetic_v<T>);
  return EntryType::kByte;
}

template <Reduction reduction, typename R, typename T>
const Reducer* reducer_of() {
  using State = typename R::State;
  static_assert(sizeof(State) <= backend::kMaxReducerState && std::is_trivially_copyable_v<State>);
  static constexpr Reducer reducer = {
      sizeof(State),
      begin_of<R>(),
      [](void* state, const void* in, int64_t n, int64_t index) {
        R::add(*static_cast<State*>(state), static_cast<const T*>(in), n, index);
      },
      [](void* state, const void* later) { R::merge(*static_cast<State*>(state), *static_cast<const State*>(later)); },
      [](const void* state, void* out) {
        *static_cast<typename R::Result*>(out) = R::finish(*static_cast<const State*>(state));
      },
      parameter_bytes_of<R>(),
      begin_with_of<R>(),
      {reduction, entry_type_of<R, T>()}};
  return &reducer;
}

// ---- the table ----------------------------------------------------------------------------------------------------------

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
  vml<F::kSqrt>("vmsSqrt", "vmdSqrt", [](const auto& x) { return x.sqrt(); });
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
  // Between tensors of a half dtype PyTorch rounds after each operation here; only a number on the right is computed in float32.
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

// Entries of kSize bytes.
template <typename T>
void where_loop(void* out, const void* const* in, const Number*, int64_t n) {
  const auto* const condition = static_cast<const uint8_t*>(in[0]);
  const T* const yes = static_cast<const T*>(in[1]);
  const T* const no = static_cast<const T*>(in[2]);
  T* const result = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) result[i] = condition[i] != 0 ? yes[i] : no[i];
}

template <typename T>
void masked_fill_loop(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const T* const x = static_cast<const T*>(in[0]);
  const auto* const mask = static_cast<const uint8_t*>(in[1]);
  T value;
  std::memcpy(&value, &numbers[0], sizeof(T));
  T* const result = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) result[i] = mask[i] != 0 ? value : x[i];
}

// clamp with a NaN for a bound gives NaN everywhere, where the bound is a number.
template <typename T, bool kLow, bool kHigh>
void clamp_loop(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const T first = number_as<T>(numbers[0]);
  const T second = number_as<T>(numbers[kLow && kHigh ? 1 : 0]);
  if constexpr (std::is_floating_point_v<T>) {
    using Vec = Vectorized<T>;
    if (first != first || second != second) {
      for (int64_t i = 0; i < n; ++i) static_cast<T*>(out)[i] = std::numeric_limits<T>::quiet_NaN();
      return;
    }
    const Number pair[2] = {numbers[0], numbers[kLow && kHigh ? 1 : 0]};
    const auto bounded = [](const Vec& x, const Vec& low, const Vec& high) {
      if constexpr (kLow && kHigh) return at::vec::clamp(x, low, high);
      if constexpr (kLow) return at::vec::clamp_min(x, low);
      return at::vec::clamp_max(x, high);
    };
    vector_loop<T, 1, 2, decltype(bounded)>(out, in, pair, n);
  } else {
    const T* const x = static_cast<const T*>(in[0]);
    T* const result = static_cast<T*>(out);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      T value = x[i];
      if (kLow) value = value < first ? first : value;
      if (kHigh) value = second < value ? second : value;
      result[i] = value;
    }
  }
}

template <typename T>
void threshold_loop(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const T threshold = number_as<T>(numbers[0]), value = number_as<T>(numbers[1]);
  const T* const x = static_cast<const T*>(in[0]);
  const T* const other = static_cast<const T*>(in[1]);
  T* const result = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) result[i] = x[i] <= threshold ? value : other[i];
}

// base ** exponent, wrapping.
template <typename T>
void integer_power(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const T* const x = static_cast<const T*>(in[0]);
  T* const result = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) {
    T power = 1, base = x[i];
    for (int64_t exponent = numbers[0].i64; exponent > 0; exponent >>= 1) {
      if ((exponent & 1) != 0) power *= base;
      base *= base;
    }
    result[i] = power;
  }
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
