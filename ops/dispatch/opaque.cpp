#include "ops/dispatch/opaque.h"

#include <ATen/core/dispatch/OperatorEntry.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "ops/dispatch/catch_all.h"
#include "ops/record/op_info.h"

namespace hetero::ops {
namespace {

// The names of all operators that are not PyTorch's own.
class Names final : public c10::OpRegistrationListener {
 public:
  static std::vector<c10::OperatorName> all() {
    // Both stay until the process ends: libraries may be loaded at any time.
    static Names* const names = new Names;
    static auto* const listening = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::unique_ptr<c10::OpRegistrationListener>(names)));
    (void)listening;
    const std::lock_guard lock(names->mutex_);
    return {names->names_.begin(), names->names_.end()};
  }

  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    if (is_own(op.operator_name().name)) return;
    const std::lock_guard lock(mutex_);
    names_.insert(op.operator_name());
  }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    const std::lock_guard lock(mutex_);
    names_.erase(op.operator_name());
  }

 private:
  std::mutex mutex_;
  std::unordered_set<c10::OperatorName> names_;
};

bool is_opaque(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
}

}  // namespace

OpaqueOperators::OpaqueOperators() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : Names::all()) {
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !is_opaque(*op)) continue;
    kernels_.push_back(dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1,
                                               c10::KernelFunction::makeFromBoxedFunction<&catch_all>(), std::nullopt,
                                               nullptr, "hetero: a capture"));
  }
}

}  // namespace hetero::ops
