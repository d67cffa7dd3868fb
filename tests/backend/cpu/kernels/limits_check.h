// Limits that a kernel applies to what it stores, against the same behind it.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend/cpu/vector/limits.h"
#include "tests/catch/catch.h"

namespace hetero::backend {

// `run(results, limits)` writes `count` floats, of which some may be NaN. The sign of 0 may be lost
// where a half type rounds.
template <typename Run>
void check_limits(int64_t count, const Run& run, bool half = false) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> plain(static_cast<size_t>(count), -3.0f);
  run(plain.data(), Limits());
  for (const Limits limits : {Limits{.low = 0}, Limits{.high = 0.25f}, Limits{-0.5f, 0.5f}, Limits{0.5f, -0.5f},
                              Limits{-kInfinity, -kInfinity}}) {
    std::vector<float> limited(plain.size(), -3.0f);
    run(limited.data(), limits);
    size_t different = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      const float above = plain[i] < limits.low ? limits.low : plain[i];
      const float expected = above > limits.high ? limits.high : above;
      const bool both_nan = std::isnan(expected) && std::isnan(limited[i]);
      const bool both_zero = expected == 0 && limited[i] == 0 && half;
      different += !both_nan && !both_zero && std::bit_cast<uint32_t>(expected) != std::bit_cast<uint32_t>(limited[i]);
    }
    REQUIRE(different == 0);
  }
}

}  // namespace hetero::backend
