// Formulas that are longer than a line.
//
// A formula is written as PyTorch writes it in ATen/native/cpu, operation for operation, since each
// operation rounds; and as there, the compiler makes one rounding of a product and a sum
// (-ffp-contract=fast, GCC's default).
//
// Included by functions_impl.h only, which says how it is compiled.
//
// Thread safety: pure functions.

#pragma once

#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>

#include "backend/fused/gelu.h"
#include "ops/fused/functions_loops.h"

namespace hetero::ops::CPU_CAPABILITY {
namespace {

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

// The parts of a norm of any order (numbers[0].f64): the terms of its sum, the terms of its
// maximum, and what follows from both. They are one program for all orders, since the order is a
// number.
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

// exp_u20 takes a NaN for a number; a clamp lets it through, and e^x is never below x.
template <typename Vec>
Vec exp_fast(const Vec& x) {
  return at::vec::clamp_min(x, x.exp_u20());
}

}  // namespace
}  // namespace hetero::ops::CPU_CAPABILITY
