// Size classes: the sizes in which memory and addresses are handed out.
//
// Up to 512 bytes, every multiple of 64 is a class. Above, each doubling is divided into eight
// classes, so a class exceeds the request by at most 12.5 %. Requests of nearly equal size share
// blocks.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace hetero::backend {

inline constexpr size_t kAlignment = 64;

// The largest request that has a class: the size of a process's address space on x86-64.
inline constexpr size_t kLargestClassBytes = size_t{1} << 47;

inline constexpr int kLinearClasses = 8;
inline constexpr int kClassesPerDoubling = 8;
inline constexpr int kSizeClasses = kLinearClasses + kClassesPerDoubling * (47 - 9);

// Rounds up to kAlignment; zero bytes count as one, because every block has an address of its own.
constexpr size_t round_to_alignment(size_t bytes) {
  return bytes == 0 ? kAlignment : (bytes + kAlignment - 1) & ~(kAlignment - 1);
}

// REQUIRES: bytes <= kLargestClassBytes.
constexpr int size_class(size_t bytes) {
  const size_t last = bytes == 0 ? 0 : bytes - 1;
  if (last < kLinearClasses * kAlignment) return static_cast<int>(last / kAlignment);
  const int doubling = std::bit_width(last) - 1;
  const int eighth = static_cast<int>(last >> (doubling - 3)) - kClassesPerDoubling;
  return kLinearClasses + (doubling - 9) * kClassesPerDoubling + eighth;
}

constexpr size_t class_bytes(int index) {
  if (index < kLinearClasses) return (static_cast<size_t>(index) + 1) * kAlignment;
  const int doubling = 9 + (index - kLinearClasses) / kClassesPerDoubling;
  const int eighths = kClassesPerDoubling + (index - kLinearClasses) % kClassesPerDoubling + 1;
  return static_cast<size_t>(eighths) << (doubling - 3);
}

}  // namespace hetero::backend
