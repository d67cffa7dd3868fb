// Loops of the vector functions over blocks, by vectors or by entries, and casts.
//
// Included by functions_impl.h only, which says how it is compiled.
//
// Thread safety: pure functions.

#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/TypeCast.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

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

// ---- loops --------------------------------------------------------------------------------------

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
  }
  (std::make_index_sequence<kInputs>(), std::make_index_sequence<kNumbers>());
}

// The same on single entries, for what rounds nowhere; the compiler makes vectors of it. `out` may
// be an input: same entry.
template <typename T, typename R, int kInputs, int kNumbers, typename F>
void entry_loop(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const F function;
  [&]<size_t... I, size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>) {
    const T filled[kNumbers + 1] = {number_as<T>(numbers[J])..., T(0)};
    const T* const inputs[] = {static_cast<const T*>(in[I])...};
    R* const result = static_cast<R*>(out);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) result[i] = static_cast<R>(function(inputs[I][i]..., filled[J]...));
  }
  (std::make_index_sequence<kInputs>(), std::make_index_sequence<kNumbers>());
}

// The second argument before the first.
template <typename F>
struct Swapped {
  template <typename A, typename B, typename... Rest>
  auto operator()(const A& a, const B& b, const Rest&... rest) const {
    return F()(b, a, rest...);
  }
};

// ---- casts --------------------------------------------------------------------------------------

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

// Without vector instructions PyTorch computes half dtypes entry by entry, rounding after each
// operation.
#if defined(CPU_CAPABILITY_DEFAULT)
constexpr bool kRoundsHalvesStepwise = true;
#else
constexpr bool kRoundsHalvesStepwise = false;
#endif

}  // namespace
}  // namespace hetero::ops::CPU_CAPABILITY
