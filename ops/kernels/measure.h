// Measures which of several implementations is the fastest.
//
// The choosers of products and convolutions (linear_choice.h, ops/convolution/choice.h) call it at
// the first call of a shape.
//
// Thread safety: any thread. The times are those of the whole machine, so concurrent measurements
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

// Times `count` candidates; run(i) runs one of them. They take turns, so a disturbance hits all of
// them. Other memory is read before each run, so no operand stays in a second-level cache: between
// two uses of a weight, a program uses others.
Measured measure(size_t count, backend::FunctionRef<void(size_t)> run);

// The time of others' kernels counts as so much more: they keep OpenMP's threads, and the threads
// of a program that has none of them need not wait for each other (begin_openmp).
inline constexpr double kOfOpenMp = 1.1;

// The fastest candidate. The first one, the stock kernel, unless another gains more than a few
// percent.
size_t fastest(const Measured& measured);

}  // namespace hetero::ops
