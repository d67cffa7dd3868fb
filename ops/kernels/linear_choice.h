// The fastest implementation of a matrix product on this machine, for each shape.
//
// linear.h measures the implementations and keeps the outcome here. choices.h says how choices are
// looked up and stored on disk.
//
// Thread safety: any thread; a lookup takes no lock.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "backend/cpu/kernels/matvec.h"
#include "ops/kernels/choices.h"

namespace hetero::ops {

enum class LinearImplementation : uint8_t {
  kStock,   // ATen's kernel
  kMatvec,  // backend/cpu/kernels/matvec.h
  // These pack the weight each time:
  kPanels,  // backend/cpu/kernels/panel_gemm.h
  kTiles,   // backend/cpu/kernels/tile_gemm.h
  // Implementations with a packed weight that is kept:
  kPackedPanels,
  kPackedTiles,
  kPackedBlas,  // sgemm_packed of blas.h
};
inline constexpr int kLinearImplementations = 7;
inline constexpr LinearImplementation kPackedImplementations[] = {
    LinearImplementation::kPackedPanels, LinearImplementation::kPackedTiles, LinearImplementation::kPackedBlas};
inline bool needs_packing(LinearImplementation implementation) {
  return std::ranges::find(kPackedImplementations, implementation) != std::end(kPackedImplementations);
}
const char* to_string(LinearImplementation implementation);

// The properties of a product y[m, n] = x[m, k] * w that the choice depends on.
struct LinearShape {
  static constexpr const char* kKind = "linear 11";
  backend::Element element;
  bool x_columns;  // x is [k, m]
  bool columns;    // w is [k, n]
  bool bias;
  bool tiles;  // the tile unit may be used
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t threads;
  bool leads = false;  // what comes next can run on its rows

  bool operator==(const LinearShape&) const = default;
  // The shape that stands for all with a similar m.
  LinearShape rounded() const;
  std::array<int64_t, 10> numbers() const {
    return {static_cast<int64_t>(element), x_columns, columns, bias, tiles, m, n, k, threads, leads};
  }
};

struct LinearChoice {
  // The best that needs nothing but the operands.
  LinearImplementation plain = LinearImplementation::kStock;
  // An implementation with a packed weight that is better still; kStock for none, nullopt if that
  // was not tried.
  std::optional<LinearImplementation> packed = std::nullopt;
  bool sure = true;  // false: guessed, since the machine was too busy to measure

  bool operator==(const LinearChoice&) const = default;
  bool refines(const LinearChoice& earlier) const { return plain == earlier.plain && packed && !earlier.packed; }
};

std::string line_of(const LinearShape& shape, const LinearChoice& choice);
bool parse_line(const std::string& line, LinearShape& shape, LinearChoice& choice);

using LinearChoices = Choices<LinearShape, LinearChoice>;
// The choices of this process.
LinearChoices& linear_choices();

}  // namespace hetero::ops
