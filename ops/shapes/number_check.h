// The checks of numbers that an operator's CPU kernel makes and its Meta kernel does not, such as
// those of `uniform_(2, 1)`. A call makes them when it is recorded, as on the CPU.
//
// Thread safety: any thread.

#pragma once

#include "ops/record/op_info.h"

namespace hetero::ops {

// Asks the CPU's kernel, with one element in the place of the call's tensor, and raises what it
// raises. Numbers that were asked about lately are not asked about again. REQUIRES:
// info.row.checks_numbers; the operator has one tensor argument.
void check_numbers(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

}  // namespace hetero::ops
