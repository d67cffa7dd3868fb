// How graph/ sees an operator: the traits that follow from its name and its row.
//
// Thread safety: any thread.

#pragma once

#include <string>

#include "graph/ir/op.h"

namespace hetero::ops {

// All but the kernel, and what only typed rows say.
graph::OpTraits traits_of(const std::string& name);

}  // namespace hetero::ops
