#include "graph/ir/fused_group.h"

#include <algorithm>

namespace hetero::graph {

const char* to_string(FusionNote note) {
  switch (note) {
    case FusionNote::kJoined:
      return "joined";
    case FusionNote::kTailJoined:
      return "tail joined";
    case FusionNote::kAlone:
      return "alone";
    case FusionNote::kNoLowering:
      return "no lowering";
    case FusionNote::kOtherShape:
      return "other shape";
    case FusionNote::kNotTrailing:
      return "not trailing";
    case FusionNote::kOtherRow:
      return "other row";
    case FusionNote::kOverlap:
      return "overlap";
    case FusionNote::kTooLarge:
      return "too large";
    case FusionNote::kClosed:
      return "closed";
    case FusionNote::kOtherDevice:
      return "other device";
  }
  return "?";
}

bool FusedGroup::has_checks() const {
  return std::ranges::any_of(
      kernel.steps, [](const backend::FusedStep& step) { return step.kind == backend::FusedStep::Kind::kCheck; });
}

}  // namespace hetero::graph
