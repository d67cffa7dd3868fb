#include "ops/record/trace_slice.h"

namespace hetero::ops {

void TraceSlice::clear() {
  graph.clear();
  recorded.clear();
  selection.clear();
  holds.clear();
  bindings.clear();
  to_close.clear();
  if (!notes.empty()) notes.clear();
}

void PlanRequest::clear() {
  keeps = false;
  kept = nullptr;
  values.clear();
  end = nullptr;
  own_plans = nullptr;
  similar = nullptr;
  own_windows = nullptr;
  effort = 1;
}

void Cut::clear() {
  slice.clear();
  request.clear();
  times.mark = nullptr;
}

}  // namespace hetero::ops
