// The longer functions of Encoder (call.h), for the files that instantiate it.

#pragma once

#include <ATen/core/Tensor.h>

#include "ops/record/call.h"

namespace hetero::ops {

template <typename Sink>
void Encoder<Sink>::tensor(const at::Tensor& value, graph::Access access) {
  if (!value.defined()) {
    tag(Tag::kUndefined);
    return;
  }
  const c10::TensorImpl* impl = value.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl->key_set();
  if (keys.has_backend(c10::BackendComponent::PrivateUse1Bit) && impl->layout() == c10::kStrided) [[likely]] {
    tag(Tag::kTensor);
    uint8_t bits = 0;
    if (keys.has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}))) [[unlikely]] {
      bits = (value.is_conj() ? graph::kConjugate : 0) | (value.is_neg() ? graph::kNegative : 0);
    }
    if (impl->is_wrapped_number()) bits |= graph::kWrappedNumber;
    sink().operand(value, access, bits);
    return;
  }
  if (value.device().is_cpu() && value.dim() == 0 && value.layout() == c10::kStrided &&
      access == graph::Access::kRead) {
    constant(value);
    return;
  }
  tag(Tag::kUndefined);
  sink().reject(value);
}

template <typename Sink>
void Encoder<Sink>::constant(const at::Tensor& value) {
  const at::Tensor plain = value.is_conj() || value.is_neg() ? value.resolve_conj().resolve_neg() : value;
  tag(Tag::kConstant);
  sink().put_structure(static_cast<int8_t>(plain.scalar_type()));
  sink().put_structure(
      static_cast<uint8_t>(value.unsafeGetTensorImpl()->is_wrapped_number() ? graph::kWrappedNumber : 0));
  std::byte number[kConstantBytes] = {};
  std::memcpy(number, plain.const_data_ptr(), plain.element_size());
  sink().put_values(number);
}

template <typename Sink>
template <typename Put>
void Encoder<Sink>::number(const at::Scalar& value, Put put) {
  switch (value.type()) {
    case at::kDouble:
      sink().put_structure(ScalarKind::kReal);
      return put(value.toDouble());
    case at::kLong:
      sink().put_structure(ScalarKind::kInteger);
      return put(value.toLong());
    case at::kUInt64:
      sink().put_structure(ScalarKind::kUnsigned);
      return put(value.toUInt64());
    case at::kBool:
      sink().put_structure(ScalarKind::kBoolean);
      return put(static_cast<int64_t>(value.toBool()));
    default:
      sink().put_structure(ScalarKind::kComplex);
      return put(value.toComplexDouble());
  }
}

template <typename Sink>
void Encoder<Sink>::scalar(const at::Scalar& value) {
  tag(Tag::kScalar);
  number(value, [this](const auto& bits) { sink().put_values(bits); });
}

template <typename Sink>
void Encoder<Sink>::shape_scalar(const at::Scalar& value) {
  tag(Tag::kShapeScalar);
  number(value, [this](const auto& bits) { sink().put_sizes(bits); });
}

}  // namespace hetero::ops
