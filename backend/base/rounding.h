// Integer division and multiples, rounded up; distances of rows.
//
// REQUIRES: no argument is negative, and `by` and `to` are not 0.

#pragma once

#include <cstdint>

namespace hetero::backend {

constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t round_up(int64_t value, int64_t to) { return divide_up(value, to) * to; }

// From row to row: rows a power of two apart would share a few lines of a cache.
constexpr int64_t row_pitch(int64_t row_bytes) { return row_bytes % 1024 == 0 ? row_bytes + 64 : row_bytes; }

}  // namespace hetero::backend
