// The portable Vector: floats in plain loops, which the compiler turns into vector instructions.
//
// attention_kernel.h and matvec_kernel.h are templates over a vector type. This one runs on every
// processor; vector_avx2.h and vector_avx512.h have the same functions.
//
// Thread safety: a value.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace hetero::backend {
namespace {

struct Vector {
  static constexpr int kWidth = 4;
  static constexpr int kRegisters = 16;
  float v[4];

  template <typename Function>
  static Vector each(Function&& function) {
    return {function(0), function(1), function(2), function(3)};
  }
  static Vector zero() { return {}; }
  static Vector of(float value) { return {value, value, value, value}; }
  static Vector broadcast(const float* p) { return of(*p); }
  static Vector load(const float* p) { return {p[0], p[1], p[2], p[3]}; }
  static Vector load_first(const float* p, int n) {
    return each([&](int i) { return i < n ? p[i] : 0.0f; });
  }
  void store(float* p) const { std::memcpy(p, v, sizeof(v)); }
  void store_first(float* p, int n) const { std::copy_n(v, n, p); }
  static Vector first(Vector a, int n, Vector other) {
    return each([&](int i) { return i < n ? a.v[i] : other.v[i]; });
  }
  static Vector keep(Vector a) { return a; }

  static Vector add(Vector a, Vector b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static Vector sub(Vector a, Vector b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static Vector mul(Vector a, Vector b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Vector fma(Vector a, Vector b, Vector c) {
    return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static Vector max(Vector a, Vector b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Vector min(Vector a, Vector b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  float sum() const { return (v[0] + v[1]) + (v[2] + v[3]); }
  float largest() const { return std::max(std::max(v[0], v[1]), std::max(v[2], v[3])); }

  static Vector exponent(Vector a) {
    return each([&](int i) {
      uint32_t bits;
      std::memcpy(&bits, &a.v[i], sizeof(bits));
      bits <<= 23;
      float number;
      std::memcpy(&number, &bits, sizeof(bits));
      return number;
    });
  }
  static Vector zero_below(Vector a, Vector x, float limit) {
    return each([&](int i) { return x.v[i] < limit ? 0.0f : a.v[i]; });
  }

  static Vector quads(const float* p, int64_t) { return load(p); }
  static void transpose(Vector& a, Vector& b, Vector& c, Vector& d) {
    Vector* const rows[4] = {&a, &b, &c, &d};
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < i; ++j) std::swap(rows[i]->v[j], rows[j]->v[i]);
    }
  }

  // The sums of four vectors.
  static void sums(Vector a, Vector b, Vector c, Vector d, float* out) {
    const float four[4] = {a.sum(), b.sum(), c.sum(), d.sum()};
    std::memcpy(out, four, sizeof(four));
  }
};

}  // namespace
}  // namespace hetero::backend
