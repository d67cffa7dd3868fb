// What our own kernels share that replace stock ones: when they may run, on which elements, and how
// a profiler sees them.
//
// Thread safety: any thread.

#pragma once

#include <optional>
#include <utility>

#include "backend/cpu/kernels/matvec.h"
#include "backend/fused/kernel.h"
#include "graph/ir/op.h"
#include "ops/kernels/profiled.h"
#include "ops/settings/config.h"
#include "ops/settings/counters.h"

namespace hetero::ops {

inline backend::EntryType entry_type(backend::Element element) {
  return element == backend::Element::kFloat32    ? backend::EntryType::kFloat32
         : element == backend::Element::kBfloat16 ? backend::EntryType::kBFloat16
                                                  : backend::EntryType::kFloat16;
}
inline std::optional<backend::Element> element_of(graph::DType dtype) {
  switch (static_cast<c10::ScalarType>(dtype)) {
    case c10::kFloat:
      return backend::Element::kFloat32;
    case c10::kBFloat16:
      return backend::Element::kBfloat16;
    case c10::kHalf:
      return backend::Element::kFloat16;
    default:
      return std::nullopt;
  }
}

// Runs and counts a kernel of ours. A profiler shall see the operator.
template <typename Run>
void run_as_operator(OwnKernel kernel, const graph::Invocation& invocation, Run&& run) {
  count(counters().own_kernels[static_cast<size_t>(kernel)]);
  run_profiled(invocation.traits->name.c_str(), std::forward<Run>(run));
}

}  // namespace hetero::ops
