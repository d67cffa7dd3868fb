// Converts single numbers between float and float8 e4m3 (one sign bit, four of exponent, three of
// fraction), which is held as its bits.
//
// The format is OCP's and PyTorch's float8_e4m3fn: no infinities, 448 is the largest number, 0x7f
// is NaN. Rounds to nearest, ties to even; what is larger than 448 becomes 448, as caches want it.
//
// Thread safety: pure functions.

#pragma once

#include <bit>
#include <cstdint>

namespace hetero::backend {

inline constexpr float kLargestFloat8 = 448.0f;

inline float float8_to_float(uint8_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {
    const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -subnormal : subnormal;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

inline uint8_t float_to_float8(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude >= std::bit_cast<uint32_t>(kLargestFloat8)) return static_cast<uint8_t>(sign | 0x7e);
  // Below 2^-6: adding 2^14 puts the last bit of a subnormal at the last bit of the float.
  if (magnitude < 0x3c800000) {
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000));
  }
  const uint32_t rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
  return static_cast<uint8_t>(sign | ((rounded - (120u << 23)) >> 20));
}

}  // namespace hetero::backend
