// Functions and reducers for fused kernels in tests, in plain C++. They cope with misaligned
// arrays, and give the same bits however a block is cut, so that results can be compared exactly.

#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/fused/kernel.h"

namespace hetero::backend::testing {

// An unsigned integer of 16 bytes, added without carry.
struct Wide {
  uint64_t low = 0;
  uint64_t high = 0;
  Wide() = default;
  explicit Wide(uint64_t value) : low(value), high(~value) {}
  explicit operator uint64_t() const { return low + 3 * high; }
};

template <typename T>
T load_entry(const void* array, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + i * int64_t{sizeof(T)}, sizeof(T));
  return value;
}
template <typename T>
void store_entry(void* array, int64_t i, T value) {
  std::memcpy(static_cast<char*>(array) + i * int64_t{sizeof(T)}, &value, sizeof(T));
}

// Maps a function of entries over the arrays.
template <typename Out, typename In, auto kFunction>
void map_unary(void* out, const void* const* in, const Number*, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_entry<Out>(out, i, kFunction(load_entry<In>(in[0], i)));
}
template <typename T, auto kFunction>
void map_binary(void* out, const void* const* in, const Number*, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    store_entry<T>(out, i, kFunction(load_entry<T>(in[0], i), load_entry<T>(in[1], i)));
  }
}

template <typename T>
inline constexpr MapFunction kAdd = map_binary<T, +[](T a, T b) -> T { return static_cast<T>(a + b); }>;
template <typename T>
inline constexpr MapFunction kSubtract = map_binary<T, +[](T a, T b) -> T { return static_cast<T>(a - b); }>;
template <typename T>
inline constexpr MapFunction kMultiply = map_binary<T, +[](T a, T b) -> T { return static_cast<T>(a * b); }>;
template <typename T>
inline constexpr MapFunction kDivide = map_binary<T, +[](T a, T b) -> T { return static_cast<T>(a / b); }>;
template <typename T>
inline constexpr MapFunction kMaximum = map_binary<T, +[](T a, T b) -> T { return a < b ? b : a; }>;
inline constexpr MapFunction kExp = map_unary<float, float, +[](float x) -> float { return std::exp(x); }>;
template <typename In, typename Out>
inline constexpr MapFunction kCast =
    map_unary<Out, In, +[](In x) -> Out { return static_cast<Out>(static_cast<uint64_t>(x)); }>;

// out[i] = in[0][i] + numbers[0], as floats.
inline void add_number(void* out, const void* const* in, const Number* numbers, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_entry<float>(out, i, load_entry<float>(in[0], i) + numbers[0].f32);
}

// out[i] = in[0][i] + the first bytes of numbers[0]; the row map of kAdd.
template <typename T>
void add_row_entry(void* out, const void* const* in, const Number* numbers, int64_t n) {
  const T entry = load_entry<T>(numbers, 0);
  for (int64_t i = 0; i < n; ++i) store_entry<T>(out, i, static_cast<T>(load_entry<T>(in[0], i) + entry));
}

// Mixes the bits of kInputs inputs and of numbers[0]; which input is which matters.
template <typename T, int kInputs>
void mix(void* out, const void* const* in, const Number* numbers, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint64_t hash = numbers[0].bits;
    for (int j = 0; j < kInputs; ++j) {
      hash = (hash ^ static_cast<uint64_t>(load_entry<T>(in[j], i))) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    store_entry<T>(out, i, static_cast<T>(hash));
  }
}

template <typename In, typename Sum>
inline constexpr Reducer kSum = {
    sizeof(Sum),
    [](void* state) { store_entry<Sum>(state, 0, Sum{}); },
    [](void* state, const void* in, int64_t n, int64_t) {
      Sum sum = load_entry<Sum>(state, 0);
      for (int64_t i = 0; i < n; ++i) sum += static_cast<Sum>(load_entry<In>(in, i));
      store_entry<Sum>(state, 0, sum);
    },
    [](void* state, const void* later) {
      store_entry<Sum>(state, 0, load_entry<Sum>(state, 0) + load_entry<Sum>(later, 0));
    },
    [](const void* state, void* out) { store_entry<Sum>(out, 0, load_entry<Sum>(state, 0)); },
};

template <typename T>
struct Best {
  T value{};
  int64_t index = -1;  // none yet
  void offer(T other, int64_t at) {
    if (index >= 0 && !(value < other)) return;
    value = other;
    index = at;
  }
};
template <typename T, bool kIndex>
inline constexpr Reducer kBest = {
    sizeof(Best<T>),
    [](void* state) { store_entry(state, 0, Best<T>()); },
    [](void* state, const void* in, int64_t n, int64_t index) {
      auto best = load_entry<Best<T>>(state, 0);
      for (int64_t i = 0; i < n; ++i) best.offer(load_entry<T>(in, i), index + i);
      store_entry(state, 0, best);
    },
    [](void* state, const void* later) {
      auto best = load_entry<Best<T>>(state, 0);
      const auto other = load_entry<Best<T>>(later, 0);
      if (other.index >= 0) best.offer(other.value, other.index);
      store_entry(state, 0, best);
    },
    [](const void* state, void* out) {
      const auto best = load_entry<Best<T>>(state, 0);
      if constexpr (kIndex) {
        store_entry(out, 0, best.index);
      } else {
        store_entry(out, 0, best.value);
      }
    },
};
template <typename T>
inline constexpr Reducer kMax = kBest<T, false>;
template <typename T>
inline constexpr Reducer kArgmax = kBest<T, true>;

// A polynomial of the row's entries: tells any change of order, and a wrong `index`.
struct Polynomial {
  uint64_t value = 0;
  uint64_t power = 1;
  static constexpr uint64_t kBase = 0x9E3779B97F4A7C15u;
};
template <typename T>
inline constexpr Reducer kOrdered = {
    sizeof(Polynomial),
    [](void* state) { store_entry(state, 0, Polynomial()); },
    [](void* state, const void* in, int64_t n, int64_t index) {
      auto it = load_entry<Polynomial>(state, 0);
      for (int64_t i = 0; i < n; ++i) {
        it.value = it.value * Polynomial::kBase + static_cast<uint64_t>(load_entry<T>(in, i)) +
                   static_cast<uint64_t>(index + i);
        it.power *= Polynomial::kBase;
      }
      store_entry(state, 0, it);
    },
    [](void* state, const void* later) {
      auto it = load_entry<Polynomial>(state, 0);
      const auto other = load_entry<Polynomial>(later, 0);
      it.value = it.value * other.power + other.value;
      it.power *= other.power;
      store_entry(state, 0, it);
    },
    [](const void* state, void* out) { store_entry(out, 0, load_entry<Polynomial>(state, 0).value); },
};

}  // namespace hetero::backend::testing
