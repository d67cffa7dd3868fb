// Typed recorders and kernels: the fast path of the common operators, made from their C++ signatures.
//
// at::_ops::NAME::schema is a function type. From it, Recorder<NAME>::call is a kernel for the PrivateUse1 key with exactly that signature: it
// encodes its arguments (call.h), finds the outputs' windows in the meta cache and appends a node, with no boxing. Anything unusual - a first
// call, a wrong argument, a CPU tensor - is boxed and handed to the catch-all. When the node runs, typed_kernel<NAME, OUT> decodes the
// arguments and calls the CPU kernel, the `out=` variant where the row names one, so that results land in planned memory.
//
// Thread safety: as the recorder and the executor.

#pragma once

#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "ops/dispatch/catch_all.h"
#include "ops/kernels/kernel.h"
#include "ops/record/match.h"
#include "ops/record/running.h"
#include "ops/kernels/profiled.h"
#include "ops/record/recorder.h"
#include "ops/tensor/reused.h"
#include "ops/run/sync.h"

namespace hetero::ops {

// ---- arguments -> bytes -------------------------------------------------------------------------------------------

template <typename Sink>
void encode(Sink& sink, const at::Tensor& value) {
  sink.tensor(value, graph::Access::kRead);
}
template <typename Sink>
void encode(Sink& sink, const std::optional<at::Tensor>& value) {
  if (value.has_value()) {
    sink.tensor(*value, graph::Access::kRead);
  } else {
    sink.none();
  }
}
template <typename Sink>
void encode(Sink& sink, at::TensorList values) {
  sink.list(values.size());
  for (const at::Tensor& value : values) sink.tensor(value, graph::Access::kRead);
}
template <typename Sink>
void encode(Sink& sink, const at::ITensorListRef& values) {
  sink.list(values.size());
  for (const at::Tensor& value : values) sink.tensor(value, graph::Access::kRead);
}
template <typename Sink>
void encode(Sink& sink, const c10::List<std::optional<at::Tensor>>& values) {
  sink.list(values.size());
  for (const std::optional<at::Tensor> value : values) encode(sink, value);
}
template <typename Sink>
void encode(Sink& sink, const at::Scalar& value) {
  sink.scalar(value);
}
template <typename Sink>
void encode(Sink& sink, bool value) {
  sink.boolean(value);
}
template <typename Sink>
void encode(Sink& sink, int64_t value) {
  sink.integer(value);
}
template <typename Sink>
void encode(Sink& sink, const c10::SymInt& value) {
  sink.size(value.guard_int(__FILE__, __LINE__));
}
template <typename Sink>
void encode(Sink& sink, double value) {
  sink.real(value);
}
template <typename Sink>
void encode(Sink& sink, at::ScalarType value) {
  sink.integer(static_cast<int64_t>(value));
}
template <typename Sink>
void encode(Sink& sink, at::Layout value) {
  sink.integer(static_cast<int64_t>(value));
}
template <typename Sink>
void encode(Sink& sink, at::MemoryFormat value) {
  sink.integer(static_cast<int64_t>(value));
}
template <typename Sink>
void encode(Sink& sink, at::Device) {
  sink.device();
}
template <typename Sink>
void encode(Sink& sink, c10::string_view value) {
  sink.string({value.data(), value.size()});
}
template <typename Sink>
void encode(Sink& sink, at::IntArrayRef values) {
  sink.integers(values);
}
template <typename Sink>
void encode(Sink& sink, at::SymIntArrayRef values) {
  sink.size_list(C10_AS_INTARRAYREF_SLOW(values));
}
template <typename Sink>
void encode(Sink& sink, at::ArrayRef<double> values) {
  sink.reals(values);
}
template <typename Sink, size_t N>
void encode(Sink& sink, const std::array<bool, N>& values) {
  sink.list(N);
  for (const bool value : values) sink.boolean(value);
}
template <typename Sink>
void encode(Sink& sink, const at::OptionalIntArrayRef& values) {
  if (values.has_value()) {
    sink.integers(*values);
  } else {
    sink.none();
  }
}
template <typename Sink>
void encode(Sink& sink, const at::OptionalSymIntArrayRef& values) {
  if (values.has_value()) {
    sink.size_list(C10_AS_INTARRAYREF_SLOW(*values));
  } else {
    sink.none();
  }
}
template <typename Sink, typename T>
  requires(!std::is_same_v<T, at::Tensor>)
void encode(Sink& sink, const std::optional<T>& value) {
  if (value.has_value()) {
    encode(sink, *value);
  } else {
    sink.none();
  }
}

// A Tensor& is written: an argument of an in-place operator.
template <typename Sink, typename A>
void encode_argument(Sink& sink, A& value, graph::Access written) {
  if constexpr (std::is_same_v<A, at::Tensor>) {
    sink.tensor(value, written);
  } else {
    encode(sink, value);
  }
}

// ---- bytes -> arguments -------------------------------------------------------------------------------------------

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

// ---- results ------------------------------------------------------------------------------------------------------

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
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::tuple<T...>(std::move(stack[I]).toTensor()...);
    }(std::index_sequence_for<T...>());
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

// Arguments that an operator writes although its schema does not say so.
template <typename Op>
struct HiddenWrites {
  template <typename... A>
  static constexpr uint32_t mask(const A&...) {
    return 0;
  }
};

// ---- recording ----------------------------------------------------------------------------------------------------

template <typename Op, typename Schema = typename Op::schema>
struct TypedRecorder;

template <typename Op, typename R, typename... A>
struct TypedRecorder<Op, R(A...)> {
  // The row's entry in the op table; set when the row is registered, before any call.
  static inline graph::OpId id = 0;
  // What it does to the argument it writes.
  static inline graph::Access written = graph::Access::kUpdate;

  static R call(A... arguments) {
    check_fork();
    const at::ScalarType default_dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
    std::array<at::Tensor, Results<R>::kCount> outputs;
    Recorded how = Recorded::kNo;
    {
      Locked lock(recorder().mutex());
      if (recorder().set_default_dtype(default_dtype)) [[likely]] {
        how = match(outputs, arguments...);
        if (how == Recorded::kNo) [[unlikely]]
          how = look_up(outputs, arguments...);
      }
    }
    if (how == Recorded::kNo) [[unlikely]]
      return boxed(arguments...);
    if (how == Recorded::kUnderPressure) [[unlikely]]
      after_record();
    if constexpr (Results<R>::kCount == 0) {
      return first_reference(arguments...);
    } else {
      return Results<R>::from(outputs);
    }
  }

 private:
  enum class Recorded : uint8_t { kNo, kYes, kUnderPressure };
  using Outputs = std::array<at::Tensor, Results<R>::kCount>;
  static constexpr bool kHiddenWrites = requires { HiddenWrites<Op>::kSome; };

  // Records the call if it is the predicted one.
  static Recorded match(Outputs& outputs, A&... arguments) {
    if constexpr (kHiddenWrites) return Recorded::kNo;
    Match match(recorder(), id);
    if (!match.possible()) return Recorded::kNo;
    (encode_argument(match, static_cast<std::remove_reference_t<A>&>(arguments), written), ...);
    if (!match.complete()) return Recorded::kNo;
    return append(match.entry(), outputs,
                  [&](std::span<const at::Tensor> made) { return match.append(made); });
  }

  // Records any call whose outputs are known.
  C10_NOINLINE static Recorded look_up(Outputs& outputs, A&... arguments) {
    Call& call = scratch_call();
    encode_all(call, arguments...);
    if (call.foreign.defined()) return Recorded::kNo;
    const MetaEntry* entry = recorder().expect(id, call);
    if (entry == nullptr || entry->straight) return Recorded::kNo;
    return append(*entry, outputs, [&](std::span<const at::Tensor> made) { return recorder().append(id, call, made); });
  }

  static void encode_all(Call& call, A&... arguments) {
    if constexpr (kHiddenWrites) {
      // The operands of hidden writes are optional tensors of a call that is otherwise ordinary.
      const uint32_t mask = HiddenWrites<Op>::mask(arguments...);
      uint32_t index = 0;
      const auto one = [&](auto& argument) {
        const size_t before = call.operands.size();
        encode(call, argument);
        if ((mask >> index++ & 1) != 0 && call.operands.size() > before) {
          call.operands.back().access = graph::Access::kUpdate;
        }
      };
      (one(arguments), ...);
    } else {
      (encode_argument(call, static_cast<std::remove_reference_t<A>&>(arguments), written), ...);
    }
  }

  template <typename Append>
  static Recorded append(const MetaEntry& entry, Outputs& outputs, Append append_node) {
    const graph::WindowTable& windows = window_table();
    bool all_defined = true;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const MetaOutput& output = entry.outputs[i];
      if (output.window == graph::kNoWindow) {
        all_defined = false;
        continue;
      }
      outputs[i] = make_tensor(windows[output.window], output.window, output.storage_bytes);
    }
    count_locked(counters().typed_nodes);
    bool pressure;
    if (all_defined) [[likely]] {
      pressure = append_node(outputs);
    } else {
      std::vector<at::Tensor> defined;
      for (const at::Tensor& output : outputs) {
        if (output.defined()) defined.push_back(output);
      }
      pressure = append_node(defined);
    }
    return pressure ? Recorded::kUnderPressure : Recorded::kYes;
  }

  C10_NOINLINE static R boxed(A... arguments) {
    static const OpInfo& info = op_info(Op::name, Op::overload_name);
    torch::jit::Stack stack = c10::impl::boxArgs<A...>(std::forward<A>(arguments)...);
    record_boxed(info, &stack);
    if constexpr (Results<R>::kCount == 0) {
      return first_reference(arguments...);
    } else {
      return Results<R>::from(stack);
    }
  }
};

// ---- running ------------------------------------------------------------------------------------------------------

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

  // Decodes the arguments of types Next, Rest... one inside the other's lifetime, then calls the operator.
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

// The kernel of an operator whose typed kernel is `stock`; specialized where there is something better for some calls. With a member
// kTakesMemory it is given its outputs' memory although the operator has no `out=` variant; complete(OpTraits&) says what else is known of it.
template <typename Op, graph::KernelFunction stock>
struct KernelOf {
  static constexpr graph::KernelFunction kValue = stock;
};

template <typename Op>
std::string full_name() {
  return std::string(Op::name) + (*Op::overload_name ? "." : "") + Op::overload_name;
}

// One row of the op table, for an operator whose dispatcher entry is code that calls TypedRecorder itself.
template <typename Op, typename Out = NoOut>
void enter_typed_row(graph::OpClass op_class) {
  graph::OpTraits traits = traits_of(full_name<Op>());
  traits.op_class = op_class;
  using Kernel = KernelOf<Op, &TypedKernel<Op, Out>::run>;
  traits.brings_memory = std::is_same_v<Out, NoOut> && !requires { Kernel::kTakesMemory; };
  traits.kernel = Kernel::kValue;
  if constexpr (requires { Kernel::complete(traits); }) Kernel::complete(traits);
  TypedRecorder<Op>::id = graph::op_table().add(std::move(traits));
  if (overwrites_first_argument(full_name<Op>())) TypedRecorder<Op>::written = graph::Access::kWrite;
}

// One row of the op table: enters the traits and makes the recorder known to the dispatcher.
template <typename Op, typename Out = NoOut>
void add_typed_row(torch::Library& library, graph::OpClass op_class) {
  enter_typed_row<Op, Out>(op_class);
  library.impl(full_name<Op>().c_str(), TORCH_FN((TypedRecorder<Op>::call)));
}

}  // namespace hetero::ops
