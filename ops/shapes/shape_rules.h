// Shape rules: compute an operator's output sizes and strides from its arguments, by a simple rule.
//
// PyTorch's own answer, the Meta kernel, is Python for most operators. It takes a hundred times as
// long as recording, and its first call imports hundreds of modules. A program with ever new sizes,
// such as a growing sequence, would spend its time there. Dtypes depend on the kind of call, not on
// its sizes, and are those that a kernel once made. A rule is believed for a kind of call (a
// signature, first_sight.h) only after a kernel has given the same answer.
//
// Thread safety: pure.

#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "ops/table/operator_row.h"

namespace hetero::ops {

struct RuledOutput {
  c10::SmallVector<int64_t, 6> sizes{};
  c10::SmallVector<int64_t, 6> strides{};
  bool made = true;  // false: an undefined tensor, which the caller did not ask for
};

// Applies the rule. False where it does not say.
bool apply_rule(ShapeRule rule, c10::ArrayRef<c10::IValue> arguments, std::vector<RuledOutput>& outputs);

// The sizes of what aten::convolution makes, in any layout. False where its arguments do not fit
// together.
bool convolution_sizes(c10::ArrayRef<c10::IValue> arguments, c10::SmallVector<int64_t, 6>& sizes);

}  // namespace hetero::ops
