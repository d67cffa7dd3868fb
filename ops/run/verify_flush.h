// FlushVerifier: with config().verify, every flush runs a second time by the straight interpreter, and the bytes are compared.
//
// Before the run it copies the inputs; afterwards it interprets the same graph on the copies and compares, for each escaping buffer, the
// bytes that some node wrote. Off, it does nothing.
//
// Thread safety: the executor's lock.

#pragma once

#include <vector>

#include "ops/record/recorder.h"

namespace hetero::ops {

class FlushVerifier {
 public:
  FlushVerifier(bool active, const Cut& cut);
  // kInternal with the first difference. REQUIRES: the run succeeded.
  Status compare(const Cut& cut);

 private:
  bool active_;
  std::vector<graph::Binding> copies_;
};

}  // namespace hetero::ops
