// How a profiler sees kernels.
//
// Thread safety: any thread.

#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <utility>

namespace hetero::ops {

// Runs `run`, which a profiler shows under that name. Without a profiler it takes no lock, as
// at::hasCallbacks() does.
template <typename Run>
void run_profiled(const char* name, Run&& run) {
  std::optional<at::StepCallbacks> callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (!callbacks) [[likely]]
    return run();
  at::RecordFunction guard(std::move(*callbacks));
  at::detail::record_function_with_scope(guard, name, c10::ArrayRef<const c10::IValue>());
  run();
}

}  // namespace hetero::ops
