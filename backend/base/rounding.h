// Integer division and multiples, rounded up.
//
// REQUIRES: no argument is negative, and `by` and `to` are not 0.

#pragma once

#include <cstdint>

namespace hetero::backend {

constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t round_up(int64_t value, int64_t to) { return divide_up(value, to) * to; }

}  // namespace hetero::backend
