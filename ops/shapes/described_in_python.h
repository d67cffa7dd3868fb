// Operators without a row that only Python's Meta kernels describe, and whose CPU kernels check all
// their arguments.
//
// A C++ program cannot tell what these make. So a saved program's description of their results is
// believed until they run, and then compared with what they made. Other operators are refused there
// (docs/executor.md, Limits): gradients and others that PyTorch calls in one way only, whose
// kernels read as many elements as that way promises, and those of other libraries.
//
// Thread safety: any thread.

#pragma once

#include <string>

namespace hetero::ops {

// `name` with or without an overload; variants with `out` are as their operators.
bool checks_its_arguments(const std::string& name);

}  // namespace hetero::ops
