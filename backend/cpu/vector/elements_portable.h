// Loaders for every processor: they turn blocks of elements into vectors of floats.
//
// matvec_kernel.h and paged_attention_kernel.h say what a loader has. elements_avx2.h and
// elements_avx512.h have the same.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "backend/cpu/vector/float8.h"
#include "backend/cpu/vector/half.h"
#include "backend/cpu/vector/vector_portable.h"

namespace hetero::backend {
namespace {

template <typename S, float (*widen)(S), S (*round)(float)>
struct Elements {
  using Stored = S;
  static void load(const S* p, Vector& low, Vector& high) {
    for (int i = 0; i < 4; ++i) low.v[i] = widen(p[i]);
    for (int i = 0; i < 4; ++i) high.v[i] = widen(p[4 + i]);
  }
  static void load_part(const S* p, int count, Vector& low, Vector& high) {
    S block[8] = {};
    for (int i = 0; i < count; ++i) block[i] = p[i];
    load(block, low, high);
  }
  static void narrow(Vector low, Vector high, S* p) {
    for (int i = 0; i < 4; ++i) p[i] = round(low.v[i]);
    for (int i = 0; i < 4; ++i) p[4 + i] = round(high.v[i]);
  }
};

inline float same(float value) { return value; }
inline float int8_to_float(int8_t value) { return static_cast<float>(value); }
inline int8_t float_to_int8(float value) { return static_cast<int8_t>(value); }

using Float32 = Elements<float, same, same>;
using Bfloat16 = Elements<uint16_t, bfloat16_to_float, float_to_bfloat16>;
using Float16 = Elements<uint16_t, float16_to_float, float_to_float16>;
using Int8 = Elements<int8_t, int8_to_float, float_to_int8>;
using Float8 = Elements<uint8_t, float8_to_float, float_to_float8>;

}  // namespace
}  // namespace hetero::backend
