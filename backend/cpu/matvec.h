// Products of a few rows with a large matrix: y = x * w^T + bias, or x * w + bias, for one to eight rows of x.
//
// Such a product reads w once and does little else, so the aim is the speed of memory: several rows of w are in flight at a time, they are
// split over parallel_for, and nothing is copied or packed. Sums are kept in float32 and rounded once, when they are stored.
//
//   Matvec call{.element = Element::kBfloat16, .m = 1, .n = 3072, .k = 1024, .x = x, .x_stride = 1024, .w = w, .w_stride = 1024,
//               .y = y, .y_stride = 3072};
//   matvec(call);
//
// A result does not depend on the number of threads; it depends on the instruction set in its last bits.
//
// Thread safety: any thread; calls share nothing.

#pragma once

#include <cstdint>

#include "backend/cpu/instruction_set.h"

namespace hetero::backend {

enum class Element : uint8_t { kFloat32, kBfloat16, kFloat16 };
inline int64_t element_bytes(Element element) { return element == Element::kFloat32 ? 4 : 2; }

inline constexpr int64_t kMaxMatvecRows = 8;

// x is [m, k], y is [m, n], bias is [n]; all of one element type, dense along their last dimension. Strides count elements.
struct Matvec {
  Element element = Element::kFloat32;
  bool columns = false;  // false: w is [n, k], a row for each output; true: w is [k, n]
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* w = nullptr;
  int64_t w_stride = 0;
  const void* bias = nullptr;  // null for none
  void* y = nullptr;
  int64_t y_stride = 0;
};

// Writes y. REQUIRES: 0 <= m <= kMaxMatvecRows; y overlaps nothing that is read.
void matvec(const Matvec& call);
// The same by a given instruction set, for tests. REQUIRES: set <= instruction_set().
void matvec(const Matvec& call, InstructionSet set);

// Rows of elements to floats and back, rounded to nearest.
void widen(Element element, const void* from, int64_t count, float* to, InstructionSet set = instruction_set());
void narrow(Element element, const float* from, int64_t count, void* to, InstructionSet set = instruction_set());
// to[i] += from[first + i].
void add_elements(Element element, const void* from, int64_t first, int64_t count, float* to);

}  // namespace hetero::backend
