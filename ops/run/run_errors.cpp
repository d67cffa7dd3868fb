#include "ops/run/run_errors.h"

namespace hetero::ops {

RunErrors& run_errors() {
  static auto* instance = new RunErrors;
  return *instance;
}

}  // namespace hetero::ops
