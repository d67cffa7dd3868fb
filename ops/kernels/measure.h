// Which of several ways to compute the same is the fastest, by trying.
//
// Thread safety: any thread; the times are those of the whole machine, so concurrent measurements
// disturb each other.

#pragma once

#include <cstddef>
#include <vector>

#include "backend/base/function_ref.h"

namespace hetero::ops {

struct Measured {
  std::vector<double> seconds;  // the least of each candidate
  bool repeated = false;        // false: somebody else is using the processor, so these are guesses
};

// Times `count` candidates; run(i) runs one of them. They take turns, so that what disturbs one
// disturbs all, and before each run other memory is read, so that no operand stays in a
// second-level cache: between two uses of a weight a program uses others.
Measured measure(size_t count, backend::FunctionRef<void(size_t)> run);

// The fastest candidate; the first one, which is the stock kernel, unless another gains more than a
// few percent.
size_t fastest(const Measured& measured);

}  // namespace hetero::ops
