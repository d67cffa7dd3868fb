// Reducers: states that take in a stretch of a row, are merged, and give a result.
//
// Included by functions_impl.h only, which says how it is compiled.
//
// Thread safety: pure functions.

#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/fused/functions_formulas.h"
#include "ops/fused/functions_loops.h"

namespace hetero::ops::CPU_CAPABILITY {
namespace {

template <typename T, typename State, typename F>
Vectorized<T> fold_lanes(const T* in, int64_t n, T neutral, const F& function) {
  using Vec = Vectorized<T>;
  constexpr int64_t kWidth = Vec::size();
  Vec lanes[4] = {Vec(neutral), Vec(neutral), Vec(neutral), Vec(neutral)};
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    for (int k = 0; k < 4; ++k) lanes[k] = function(lanes[k], Vec::loadu(in + i + k * kWidth));
  }
  for (; i + kWidth <= n; i += kWidth) lanes[0] = function(lanes[0], Vec::loadu(in + i));
  if (i < n) {
    const int64_t rest = n - i;
    lanes[1] = function(lanes[1], Vec::set(Vec(neutral), Vec::loadu(in + i, rest), rest));
  }
  return function(function(lanes[0], lanes[1]), function(lanes[2], lanes[3]));
}

// The lanes of one vector made one.
template <typename T, typename F>
T across(const F& function, const Vectorized<T>& vector) {
  using Vec = Vectorized<T>;
#if !defined(CPU_CAPABILITY_DEFAULT)
  if constexpr (std::is_same_v<T, float>) return at::vec::vec_reduce_all<T>(function, vector);
#endif
  T entries[Vec::size()];
  vector.store(entries);
  for (int width = Vec::size() / 2; width > 0; width /= 2) {
    Vec low = Vec::loadu(entries, width), high = Vec::loadu(entries + width, width);
    function(low, high).store(entries, width);
  }
  return entries[0];
}

template <typename T, typename F>
T fold(const T* in, int64_t n, T neutral, const F& function) {
  return across<T>(function, fold_lanes<T, T>(in, n, neutral, function));
}

// Sums of a block are made in lanes of T, sums of blocks in double: what is lost does not grow with
// the row.
template <typename T>
struct Sum {
  using State = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
  using Result = T;
  static void begin(State& state) { state = 0; }
  static void add(State& state, const T* in, int64_t n, int64_t) {
    if constexpr (std::is_floating_point_v<T>) {
      state += fold<T>(in, n, T(0), [](const auto& a, const auto& b) { return a + b; });
    } else {
      int64_t sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += in[i];
      state += sum;
    }
  }
  static void merge(State& state, const State& later) { state += later; }
  static Result finish(const State& state) { return static_cast<T>(state); }
};

template <typename T>
struct Product {
  using State = T;
  using Result = T;
  static void begin(State& state) { state = 1; }
  static void add(State& state, const T* in, int64_t n, int64_t) {
    if constexpr (std::is_floating_point_v<T>) {
      state *= fold<T>(in, n, T(1), [](const auto& a, const auto& b) { return a * b; });
    } else {
      for (int64_t i = 0; i < n; ++i) state *= in[i];
    }
  }
  static void merge(State& state, const State& later) { state *= later; }
  static Result finish(const State& state) { return state; }
};

template <typename T, bool kGreatest>
struct Extremum {
  using State = T;
  using Result = T;
  static constexpr T neutral() {
    if constexpr (std::is_floating_point_v<T>) {
      return kGreatest ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
    } else {
      return kGreatest ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
    }
  }
  // NaN wins.
  static T better(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (b != b) return b;
    }
    return kGreatest ? (a < b ? b : a) : (b < a ? b : a);
  }
  static void begin(State& state) { state = neutral(); }
  static void add(State& state, const T* in, int64_t n, int64_t) { state = better(state, of(in, n)); }
  static T of(const T* in, int64_t n) {
    if constexpr (std::is_floating_point_v<T>) {
      return fold<T>(in, n, neutral(), [](const auto& a, const auto& b) {
        return kGreatest ? at::vec::maximum(a, b) : at::vec::minimum(a, b);
      });
    } else {
      T best = neutral();
      for (int64_t i = 0; i < n; ++i) best = kGreatest ? (best < in[i] ? in[i] : best) : (in[i] < best ? in[i] : best);
      return best;
    }
  }
  static void merge(State& state, const State& later) { state = better(state, later); }
  static Result finish(const State& state) { return state; }
};

// NaNs are passed over: what subtracts the peak finds them itself.
template <typename T>
struct Peak : Extremum<T, true> {
  static void add(T& state, const T* in, int64_t n, int64_t) {
    const T peak = fold<T>(in, n, Extremum<T, true>::neutral(),
                           [](const auto& best, const auto& x) { return at::vec::clamp_min(best, x); });
    if (state < peak) state = peak;
  }
  static void merge(T& state, const T& later) {
    if (state < later) state = later;
  }
};

// Sums of a function of entry and parameter, in lanes of T for a block and in double for blocks.
template <typename T, typename F>
struct SumWith {
  struct State {
    double sum;
    T parameter;
  };
  using Result = T;
  using Parameter = T;
  static void begin_with(State& state, const T& parameter) { state = {0, parameter}; }
  static void add(State& state, const T* in, int64_t n, int64_t) {
    using Vec = Vectorized<T>;
    constexpr int64_t kWidth = Vec::size();
    const F function;
    const Vec parameter(state.parameter);
    Vec lanes[4] = {Vec(T(0)), Vec(T(0)), Vec(T(0)), Vec(T(0))};
    int64_t i = 0;
    for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
      for (int k = 0; k < 4; ++k) lanes[k] = function(lanes[k], Vec::loadu(in + i + k * kWidth), parameter);
    }
    for (; i + kWidth <= n; i += kWidth) lanes[0] = function(lanes[0], Vec::loadu(in + i), parameter);
    if (i < n) {
      const int64_t rest = n - i;
      lanes[1] = Vec::set(lanes[1], function(lanes[1], Vec::loadu(in + i, rest), parameter), rest);
    }
    const auto add = [](const Vec& a, const Vec& b) { return a + b; };
    state.sum += across<T>(add, (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
  }
  static void merge(State& state, const State& later) { state.sum += later.sum; }
  static Result finish(const State& state) { return static_cast<T>(state.sum); }
};
struct AddSquaredDistance {
  template <typename Vec>
  Vec operator()(const Vec& sum, const Vec& x, const Vec& center) const {
    const Vec distance = x - center;
    return at::vec::fmadd(distance, distance, sum);
  }
};
struct AddExpFast {
  template <typename Vec>
  Vec operator()(const Vec& sum, const Vec& x, const Vec& peak) const {
    return sum + exp_fast(x - peak);
  }
};

// The first place of the extremum; the first NaN, where there is one.
template <typename T, bool kGreatest>
struct Place {
  struct State {
    T best;
    int64_t place;  // -1 before the first entry
  };
  using Result = int64_t;
  static bool beats(T challenger, T best) {
    if constexpr (std::is_floating_point_v<T>) {
      if (best != best) return false;
      if (challenger != challenger) return true;
    }
    return kGreatest ? challenger > best : challenger < best;
  }
  static void begin(State& state) { state = {T(0), -1}; }
  static void add(State& state, const T* in, int64_t n, int64_t index) {
    if (n == 0) return;
    const T best = Extremum<T, kGreatest>::of(in, n);
    if (state.place >= 0 && !beats(best, state.best)) return;
    int64_t i = 0;
    while (i + 1 < n && !(in[i] == best || (best != best && in[i] != in[i]))) ++i;
    state = {best, index + i};
  }
  static void merge(State& state, const State& later) {
    if (later.place >= 0 && (state.place < 0 || beats(later.best, state.best))) state = later;
  }
  static Result finish(const State& state) { return state.place; }
};

template <bool kAnyOf>
struct Truth {
  static constexpr EntryType kEntry = EntryType::kBool;
  using State = uint8_t;
  using Result = uint8_t;
  static void begin(State& state) { state = kAnyOf ? 0 : 1; }
  static void add(State& state, const uint8_t* in, int64_t n, int64_t) {
    uint8_t found = kAnyOf ? 0 : 1;
    for (int64_t i = 0; i < n; ++i) found = kAnyOf ? found | in[i] : found & in[i];
    merge(state, found);
  }
  static void merge(State& state, const State& later) { state = kAnyOf ? state | later : state & later; }
  static Result finish(const State& state) { return state; }
};

// Blocks are measured around their own means and joined as Chan et al. do.
template <typename T>
struct SquaredDeviation {
  struct State {
    double count, mean, squares;
  };
  using Result = T;
  static void begin(State& state) { state = {0, 0, 0}; }
  static void add(State& state, const T* in, int64_t n, int64_t) {
    if (n == 0) return;
    using Vec = Vectorized<T>;
    const T mean = fold<T>(in, n, T(0), [](const auto& a, const auto& b) { return a + b; }) / static_cast<T>(n);
    // Four lanes of vectors of (x - mean)^2; entries that are not there are given as the mean.
    const Vec center(mean);
    Vec lanes[4] = {Vec(T(0)), Vec(T(0)), Vec(T(0)), Vec(T(0))};
    const auto gather = [&](Vec& lane, const Vec& x) {
      const Vec distance = x - center;
      lane = at::vec::fmadd(distance, distance, lane);
    };
    constexpr int64_t kWidth = Vec::size();
    int64_t i = 0;
    for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
      for (int k = 0; k < 4; ++k) gather(lanes[k], Vec::loadu(in + i + k * kWidth));
    }
    for (; i + kWidth <= n; i += kWidth) gather(lanes[0], Vec::loadu(in + i));
    if (i < n) gather(lanes[1], Vec::set(center, Vec::loadu(in + i, n - i), n - i));
    const auto add = [](const Vec& a, const Vec& b) { return a + b; };
    const T squares = across<T>(add, (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
    merge(state, {static_cast<double>(n), mean, squares});
  }
  static void merge(State& state, const State& later) {
    if (later.count == 0) return;
    const double count = state.count + later.count;
    const double distance = later.mean - state.mean;
    state.mean += distance * (later.count / count);
    state.squares += later.squares + distance * distance * (state.count * later.count / count);
    state.count = count;
  }
  static Result finish(const State& state) { return static_cast<T>(state.squares); }
};

template <typename R>
concept HasParameter = requires {
  typename R::Parameter;
};

template <typename R>
constexpr auto begin_of() -> void (*)(void*) {
  if constexpr (HasParameter<R>) {
    return nullptr;
  } else {
    return [](void* state) { R::begin(*static_cast<typename R::State*>(state)); };
  }
}
template <typename R>
constexpr auto begin_with_of() -> void (*)(void*, const void*) {
  if constexpr (HasParameter<R>) {
    return [](void* state, const void* parameter) {
      typename R::Parameter value;
      std::memcpy(&value, parameter, sizeof(value));
      R::begin_with(*static_cast<typename R::State*>(state), value);
    };
  } else {
    return nullptr;
  }
}
template <typename R>
constexpr int32_t parameter_bytes_of() {
  if constexpr (HasParameter<R>) return sizeof(typename R::Parameter);
  return 0;
}

template <typename R, typename T>
constexpr EntryType entry_type_of() {
  if constexpr (requires { R::kEntry; }) return R::kEntry;
  if constexpr (std::is_same_v<T, float>) return EntryType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return EntryType::kFloat64;
  if constexpr (std::is_same_v<T, int8_t>) return EntryType::kInt8;
  if constexpr (std::is_same_v<T, int16_t>) return EntryType::kInt16;
  if constexpr (std::is_same_v<T, int32_t>) return EntryType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return EntryType::kInt64;
  static_assert(std::is_arithmetic_v<T>);
  return EntryType::kByte;
}

template <Reduction reduction, typename R, typename T>
const Reducer* reducer_of() {
  using State = typename R::State;
  static_assert(sizeof(State) <= backend::kMaxReducerState && std::is_trivially_copyable_v<State>);
  static constexpr Reducer reducer = {
      sizeof(State),
      begin_of<R>(),
      [](void* state, const void* in, int64_t n, int64_t index) {
        R::add(*static_cast<State*>(state), static_cast<const T*>(in), n, index);
      },
      [](void* state, const void* later) { R::merge(*static_cast<State*>(state), *static_cast<const State*>(later)); },
      [](const void* state, void* out) {
        *static_cast<typename R::Result*>(out) = R::finish(*static_cast<const State*>(state));
      },
      parameter_bytes_of<R>(),
      begin_with_of<R>(),
      {reduction, entry_type_of<R, T>()}};
  return &reducer;
}

}  // namespace
}  // namespace hetero::ops::CPU_CAPABILITY
