// Errors of runs that no caller has seen yet.
//
// Thread safety: the executor lock.

#pragma once

#include <string>
#include <vector>

#include "backend/base/status.h"
#include "ops/tensor/storage_hold.h"

namespace hetero::ops {

// What a run has left with an error. Some of it existed before and has its bytes, without the
// change that failed. These bytes are hidden until one of the run's errors is raised (give_back()
// in sync.h).
struct FailedRun {
  std::vector<std::string> errors;
  std::vector<StorageHold> storages;  // weakly: a storage without an owner is of no concern
};

struct RunErrors {
  Status deferred;                     // the first error that no caller has seen
  std::vector<FailedRun> failed_runs;  // of whose errors none was raised
};
RunErrors& run_errors();

}  // namespace hetero::ops
