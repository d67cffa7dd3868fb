// Philox4x32-10: counter-based random numbers, equal on every device and in every order of
// execution.
//
// A number is a pure function of (seed, position). So results depend neither on the division of the
// work nor on the device.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11; constants from the
// paper.
//
// Thread safety: pure functions.

#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace hetero::backend {

// The paper's function: four random words for a counter of four words and a key.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> words, uint64_t key) {
  constexpr uint32_t kMultiply0 = 0xD2511F53u;
  constexpr uint32_t kMultiply1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiply0) * words[0];
    const uint64_t product1 = static_cast<uint64_t>(kMultiply1) * words[2];
    words = {static_cast<uint32_t>(product1 >> 32) ^ words[1] ^ key0, static_cast<uint32_t>(product1),
             static_cast<uint32_t>(product0 >> 32) ^ words[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return words;
}

// Four random words for one position of a seed's sequence.
inline std::array<uint32_t, 4> philox(uint64_t seed, uint64_t counter) {
  return philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, seed);
}

// In [0, 1), with the 53 bits that a double holds.
inline double uniform_double(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// A standard normal number from two uniform ones (Box and Muller). Maps `first` from [0, 1) to (0,
// 1].
inline double standard_normal(double first, double second) {
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  return std::sqrt(-2.0 * std::log(1.0 - first)) * std::cos(kTwoPi * second);
}

}  // namespace hetero::backend
