#include "ops/match.h"

namespace hetero::ops {

void Match::tensor(const at::Tensor& value, graph::Access access) {
  const HeteroTensorImpl* const impl = hetero_impl(value.unsafeGetTensorImpl());
  constexpr c10::DispatchKeySet kBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  if (impl == nullptr || impl->key_set().has_any(kBits) || impl->is_wrapped_number() ||
      !impl->key_set().has_backend(c10::BackendComponent::PrivateUse1Bit)) [[unlikely]] {
    return Encoder::tensor(value, access);
  }
  put_structure(static_cast<uint8_t>(Tag::kTensor));
  operand(storage_of(value), recorder_.window_of(impl), access, 0);
}

void Match::operand(const at::Tensor& value, graph::Access access, uint8_t bits) {
  operand(storage_of(value), recorder_.window_of(value.unsafeGetTensorImpl()), access, bits);
}

void Match::operand(HeteroStorage* storage, graph::WindowId window, graph::Access access, uint8_t bits) {
  const std::span<const graph::Operand> inputs = expected_->inputs();
  if (inputs_ >= inputs.size()) [[unlikely]] {
    equal_ = false;
    return;
  }
  const graph::BufferId buffer = recorder_.buffer_of(storage, inputs_, inputs.data());
  const graph::Operand& expected = inputs[inputs_];
  equal_ = equal_ && expected.buffer == buffer && expected.window == window && expected.access == access &&
           expected.bits == bits;
  recorder_.input_storages_[inputs_++] = storage;
}

}  // namespace hetero::ops
