// Loops that choose between values, and powers of integers.
//
// Included by functions_impl.h only, which says how it is compiled.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/fused/functions_loops.h"

namespace hetero::ops::CPU_CAPABILITY {
namespace {

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

}  // namespace
}  // namespace hetero::ops::CPU_CAPABILITY
