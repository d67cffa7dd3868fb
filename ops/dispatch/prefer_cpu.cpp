#include "ops/dispatch/prefer_cpu.h"

#include "ops/dispatch/catch_all.h"
#include "ops/record/op_info.h"

namespace hetero::ops {

std::optional<c10::RegistrationHandleRAII> prefer_cpu_kernel(const c10::OperatorName& name) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchema(name);
  if (!op.has_value() || is_own(name.name)) return std::nullopt;
  if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
      !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || !has_default_kernel(*op)) {
    return std::nullopt;
  }
  return dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1,
                                 c10::KernelFunction::makeFromBoxedFunction<&catch_all>(), std::nullopt, nullptr,
                                 "hetero: the CPU's kernel");
}

}  // namespace hetero::ops
