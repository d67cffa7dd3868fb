// Typed kernels: how nodes of the common operators run, made from the operators' C++ signatures.
//
// typed.h of ops/dispatch records a call of at::_ops::NAME as bytes. When the node runs,
// TypedKernel<NAME, OUT> decodes them and calls the CPU kernel: the `out=` variant if the row names
// one, so that results land in planned memory.
//
// Thread safety: as the executor.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <array>
#include <tuple>

#include "graph/ir/op.h"
#include "ops/kernels/kernel.h"
#include "ops/kernels/profiled.h"
#include "ops/record/call.h"
#include "ops/record/running.h"
#include "ops/tensor/reused.h"

namespace hetero::ops {

// ---- bytes -> arguments -------------------------------------------------------------------------

// Holds what an argument of type T refers to while the kernel runs; get() gives the argument.
template <typename T>
struct Held {
  T value;
  static T read(Decoder& decoder, KernelTensors&, Tag tag) {
    if constexpr (std::is_same_v<T, bool>) {
      return decoder.get<uint8_t>() != 0;
    } else if constexpr (std::is_same_v<T, double>) {
      return decoder.real(tag);
    } else if constexpr (std::is_same_v<T, at::Scalar>) {
      return decoder.scalar(tag);
    } else if constexpr (std::is_same_v<T, at::Device>) {
      return at::Device(at::kCPU);
    } else {
      return static_cast<T>(decoder.get<int64_t>());
    }
  }
  Held(Decoder& decoder, KernelTensors& tensors) : value(read(decoder, tensors, decoder.next())) {}
  const T& get() { return value; }
};

template <>
struct Held<at::Tensor> {
  at::Tensor made;
  const at::Tensor* tensor = &made;
  Held(Decoder& decoder, KernelTensors& tensors) : Held(decoder, tensors, decoder.next()) {}
  Held(Decoder& decoder, KernelTensors& tensors, Tag tag) {
    if (tag == Tag::kTensor) {
      tensor = &tensors.operand(decoder.operand());
    } else if (tag == Tag::kConstant) {
      made = decoder.constant();
      tensor = &made;
    }
  }
  Held(const Held&) = delete;
  at::Tensor& get() { return const_cast<at::Tensor&>(*tensor); }
};

template <typename T>
struct Held<std::optional<T>> {
  std::optional<T> value;
  Held(Decoder& decoder, KernelTensors& tensors) {
    const Tag tag = decoder.next();
    if (tag == Tag::kNone) return;
    if constexpr (std::is_same_v<T, at::Tensor>) {
      value = Held<at::Tensor>(decoder, tensors, tag).get();
    } else if constexpr (std::is_same_v<T, c10::string_view>) {
      const auto length = decoder.get<uint32_t>();
      value = c10::string_view(reinterpret_cast<const char*>(decoder.skip(length)), length);
    } else if constexpr (std::is_same_v<T, c10::SymInt>) {
      value = c10::SymInt(decoder.integer(tag));
    } else {
      value = Held<T>::read(decoder, tensors, tag);
    }
  }
  const std::optional<T>& get() { return value; }
};

template <>
struct Held<c10::SymInt> {
  c10::SymInt value;
  Held(Decoder& decoder, KernelTensors&) {
    const Tag tag = decoder.next();
    value = decoder.integer(tag);
  }
  const c10::SymInt& get() { return value; }
};

template <>
struct Held<c10::string_view> {
  c10::string_view value;
  Held(Decoder& decoder, KernelTensors&) {
    decoder.next();
    const auto length = decoder.get<uint32_t>();
    value = c10::string_view(reinterpret_cast<const char*>(decoder.skip(length)), length);
  }
  c10::string_view get() { return value; }
};

// Lists are copied: the bytes are not aligned.
template <typename Element>
struct HeldList {
  c10::SmallVector<Element, 6> values;
  bool present = true;
  HeldList(Decoder& decoder, KernelTensors&) {
    const Tag tag = decoder.next();
    if (tag == Tag::kNone) {
      present = false;
      return;
    }
    const auto length = decoder.get<uint32_t>();
    for (uint32_t i = 0; i < length; ++i) {
      if constexpr (std::is_same_v<Element, double>) {
        values.push_back(decoder.get_value<double>());
      } else {
        values.push_back(tag == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>());
      }
    }
  }
};
template <>
struct Held<at::IntArrayRef> : HeldList<int64_t> {
  using HeldList::HeldList;
  at::IntArrayRef get() { return values; }
};
template <>
struct Held<at::SymIntArrayRef> : HeldList<int64_t> {
  using HeldList::HeldList;
  at::SymIntArrayRef get() { return c10::fromIntArrayRefKnownNonNegative(values); }
};
template <>
struct Held<at::OptionalIntArrayRef> : HeldList<int64_t> {
  using HeldList::HeldList;
  at::OptionalIntArrayRef get() {
    return present ? at::OptionalIntArrayRef(at::IntArrayRef(values)) : at::OptionalIntArrayRef();
  }
};
template <>
struct Held<at::OptionalSymIntArrayRef> : HeldList<int64_t> {
  using HeldList::HeldList;
  at::OptionalSymIntArrayRef get() {
    return present ? at::OptionalSymIntArrayRef(c10::fromIntArrayRefKnownNonNegative(values))
                   : at::OptionalSymIntArrayRef();
  }
};
template <size_t N>
struct Held<std::array<bool, N>> {
  std::array<bool, N> value;
  Held(Decoder& decoder, KernelTensors&) {
    decoder.next();
    decoder.get<uint32_t>();
    for (bool& flag : value) {
      decoder.next();
      flag = decoder.get<uint8_t>() != 0;
    }
  }
  std::array<bool, N> get() { return value; }
};
template <>
struct Held<at::TensorList> {
  Reused<std::vector<at::Tensor>> values;
  Held(Decoder& decoder, KernelTensors& tensors) {
    decoder.next();
    const auto length = decoder.get<uint32_t>();
    for (uint32_t i = 0; i < length; ++i) values->push_back(Held<at::Tensor>(decoder, tensors).get());
  }
  at::TensorList get() { return *values; }
};
template <>
struct Held<at::ITensorListRef> : Held<at::TensorList> {
  using Held<at::TensorList>::Held;
  at::ITensorListRef get() { return at::TensorList(*values); }
};
template <>
struct Held<c10::List<std::optional<at::Tensor>>> {
  Reused<c10::List<std::optional<at::Tensor>>> values;
  Held(Decoder& decoder, KernelTensors& tensors) {
    decoder.next();
    const auto length = decoder.get<uint32_t>();
    for (uint32_t i = 0; i < length; ++i) {
      values->push_back(Held<std::optional<at::Tensor>>(decoder, tensors).get());
    }
  }
  const c10::List<std::optional<at::Tensor>>& get() { return *values; }
};

// ---- results ------------------------------------------------------------------------------------

template <typename R>
struct Results {  // Tensor&: the operator returns an argument
  static constexpr int kCount = 0;
};
template <>
struct Results<at::Tensor> {
  static constexpr int kCount = 1;
  static at::Tensor from(std::array<at::Tensor, 1>& outputs) { return std::move(outputs[0]); }
  static at::Tensor from(torch::jit::Stack& stack) { return std::move(stack[0]).toTensor(); }
  static void deliver(KernelTensors& tensors, const graph::Invocation& invocation, at::Tensor result) {
    const int output = tensors.first_output();
    if (output < invocation.node->operand_count) tensors.deliver(output, std::move(result));
  }
};
template <typename... T>
struct Results<std::tuple<T...>> {
  static constexpr int kCount = sizeof...(T);
  static std::tuple<T...> from(std::array<at::Tensor, sizeof...(T)>& outputs) {
    return std::apply([](auto&... tensor) { return std::tuple<T...>(std::move(tensor)...); }, outputs);
  }
  static std::tuple<T...> from(torch::jit::Stack& stack) {
    return [&]<size_t... I>(std::index_sequence<I...>) { return std::tuple<T...>(std::move(stack[I]).toTensor()...); }
    (std::index_sequence_for<T...>());
  }
  static void deliver(KernelTensors& tensors, const graph::Invocation& invocation, std::tuple<T...> results) {
    int output = tensors.first_output();
    std::apply(
        [&](auto&... result) {
          ((result.defined() && output < invocation.node->operand_count ? tensors.deliver(output++, std::move(result))
                                                                        : void()),
           ...);
        },
        results);
  }
};

// The first written argument, which an in-place operator returns.
inline at::Tensor& first_reference(at::Tensor& self) { return self; }
template <typename... Rest>
at::Tensor& first_reference(at::Tensor& self, Rest&&...) {
  return self;
}

// ---- running ------------------------------------------------------------------------------------

struct NoOut {};

template <typename Op, typename Out, typename Schema = typename Op::schema>
struct TypedKernel;

template <typename Op, typename Out, typename R, typename... A>
struct TypedKernel<Op, Out, R(A...)> {
  static void run(const graph::Invocation& invocation) {
    Isolated isolated;
    KernelTensors tensors(invocation);
    run_profiled(invocation.traits->name.c_str(), [&] { run_on(invocation, tensors); });
  }

 private:
  static void run_on(const graph::Invocation& invocation, KernelTensors& tensors) {
    Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
    with_line(invocation.node->sequence, [&] { decode_then<std::decay_t<A>...>(decoder, invocation, tensors); });
  }

  // Decodes the arguments of types Next, Rest... one inside the other's lifetime, then calls the
  // operator.
  template <typename Next, typename... Rest, typename... V>
  static void decode_then(Decoder& decoder, const graph::Invocation& invocation, KernelTensors& tensors,
                          V&&... values) {
    Held<Next> held(decoder, tensors);
    if constexpr (sizeof...(Rest) == 0) {
      dispatch(invocation, tensors, values..., held.get());
    } else {
      decode_then<Rest...>(decoder, invocation, tensors, values..., held.get());
    }
  }

  template <typename... V>
  static void dispatch(const graph::Invocation& invocation, KernelTensors& tensors, V&&... values) {
    constexpr c10::DispatchKeySet kCpuKeys(c10::DispatchKey::CPU);
    if constexpr (Results<R>::kCount == 0) {
      Op::redispatch(kCpuKeys, values...);
    } else if constexpr (!std::is_same_v<Out, NoOut>) {
      const int first = tensors.first_output();
      if (invocation.node->output_count == Results<R>::kCount && all_have_memory(tensors, first)) {
        call_out(tensors, first, std::make_index_sequence<Results<R>::kCount>(), values...);
        return;
      }
      Results<R>::deliver(tensors, invocation, Op::redispatch(kCpuKeys, values...));
    } else {
      Results<R>::deliver(tensors, invocation, Op::redispatch(kCpuKeys, values...));
    }
  }

  static bool all_have_memory(KernelTensors& tensors, int first) {
    for (int i = 0; i < Results<R>::kCount; ++i) {
      if (!tensors.has_memory(first + i)) return false;
    }
    return true;
  }

  template <size_t... I, typename... V>
  static void call_out(KernelTensors& tensors, int first, std::index_sequence<I...>, V&&... values) {
    Out::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), values...,
                    const_cast<at::Tensor&>(tensors.operand(first + static_cast<int>(I)))...);
  }
};

// The kernel of an operator that has an implementation of ours for some calls. `own` runs the call,
// or returns false and has done nothing.
template <bool (*own)(const graph::Invocation&), graph::KernelFunction stock>
void own_or_stock(const graph::Invocation& invocation) {
  if (!own(invocation)) stock(invocation);
}

}  // namespace hetero::ops
