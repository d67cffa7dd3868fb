// Limits: a clamp that a kernel applies to its results as it stores them.
//
// ReLU, ReLU6 and the like behind a convolution would read all of it again. A kernel has it in
// registers.
//
// Thread safety: a value.

#pragma once

#include <limits>

namespace hetero::backend {

// What is below `low` becomes that, and then what is above `high` becomes that; NaN stays. Neither
// is NaN. Kernels limit sums before they round them: a small negative number becomes 0 under ReLU,
// where a half type would have rounded it to -0 first.
struct Limits {
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();

  bool operator==(const Limits&) const = default;
  // Null where nothing is limited.
  const Limits* any() const { return *this == Limits() ? nullptr : this; }

  float operator()(float value) const {
    const float above = value < low ? low : value;
    return above > high ? high : above;
  }
  // The same for a vector of floats. V::max and V::min give the second of equals, and where one is
  // NaN.
  template <typename V>
  [[gnu::always_inline]] V operator()(V value) const {
    return V::min(V::of(high), V::max(V::of(low), value));
  }
};

}  // namespace hetero::backend
