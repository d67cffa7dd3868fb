// FlushVerifier: with config().verify, runs every flush a second time by the reference interpreter
// and compares the bytes.
//
// It copies the inputs before the run. Afterwards it interprets the same graph on the copies and
// compares, for each escaping buffer, the bytes that some node wrote. Otherwise it does nothing.
//
// Thread safety: the executor's lock.

#pragma once

#include <vector>

#include "ops/record/trace_slice.h"

namespace hetero::ops {

class FlushVerifier {
 public:
  FlushVerifier(bool active, const TraceSlice& slice, const graph::Graph& graph);
  // kInternal with the first difference. REQUIRES: the run succeeded.
  Status compare(const TraceSlice& slice, const graph::Graph& planned);

 private:
  bool active_;
  std::vector<graph::Binding> copies_;
};

}  // namespace hetero::ops
