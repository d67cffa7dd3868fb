// Functions that PyTorch takes from MKL where it is there, and powers.
//
// Included by functions_impl.h only, which says how it is compiled.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/fused/functions_loops.h"

namespace hetero::ops::CPU_CAPABILITY {
namespace {

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
    if (exponent == 0.5) return loop([](const Vec& x) { return x.sqrt(); });
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

}  // namespace
}  // namespace hetero::ops::CPU_CAPABILITY
