#include "ops/tensor/locks.h"

namespace hetero::ops {

InterpreterHooks& interpreter_hooks() {
  static InterpreterHooks hooks;
  return hooks;
}

}  // namespace hetero::ops
