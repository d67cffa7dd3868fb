#include "ops/record/match.h"

#include "ops/record/encoder.h"
#include "ops/settings/parallel.h"

namespace hetero::ops {

template class Encoder<Match>;

bool Match::append(std::span<const at::Tensor> outputs) {
  keep_backward_here();
  appended_ = true;
  return recorder_.append_expected(expected_, outputs);
}

void Match::tensor(const at::Tensor& value, graph::Access access) {
  const HeteroTensorImpl* const impl = hetero_impl(*value.unsafeGetTensorImpl());
  constexpr c10::DispatchKeySet kOurs(c10::BackendComponent::PrivateUse1Bit);
  constexpr c10::DispatchKeySet kBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  if (impl == nullptr || (impl->key_set() & (kOurs | kBits)) != kOurs || impl->is_wrapped_number()) [[unlikely]] {
    return Encoder::tensor(value, access);
  }
  put_structure(Tag::kTensor);
  if (!equal_) return;
  const graph::Operand& expected = expected_->inputs()[inputs_];
  storage(storage_of(value),
          expected.access == access && expected.bits == 0 && impl->looks_like(window_table()[expected.window]));
}

void Match::operand(const at::Tensor& value, graph::Access access, uint8_t bits) {
  if (!equal_) return;
  const graph::Operand& expected = expected_->inputs()[inputs_];
  storage(storage_of(value), expected.access == access && expected.bits == bits &&
                                 expected.window == window_of(value.unsafeGetTensorImpl()));
}

// The storage of the next input, of which the rest was compared.
inline void Match::storage(HeteroStorage* storage, bool equal) {
  const std::span<const graph::Operand> inputs = expected_->inputs();
  equal_ = equal && inputs[inputs_].buffer == recorder_.buffer_of(storage, inputs_, inputs.data());
  recorder_.input_storages_[inputs_++] = storage;
}

}  // namespace hetero::ops
