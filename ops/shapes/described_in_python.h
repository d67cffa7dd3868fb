// Operators without a row whose Meta kernels are Python's, so that in a C++ program nobody says what they make, and whose CPU kernels look at all of their
// arguments themselves: what a saved program says of their results is believed until they run, and then compared with what they made.
//
// Others are refused there (docs/executor.md, Limits): gradients and other operators that PyTorch calls in one way only, whose kernels read as many
// elements as that way promises, and those of other libraries.
//
// Thread safety: any thread.

#pragma once

#include <string>

namespace hetero::ops {

// `name` with or without an overload; variants with `out` are as their operators.
bool checks_its_arguments(const std::string& name);

}  // namespace hetero::ops
