// Typed recorders: the fast path of the common operators, made from their C++ signatures.
//
// at::_ops::NAME::schema is a function type. From it, TypedRecorder<NAME>::call is a kernel for the
// PrivateUse1 key with exactly that signature. It encodes its arguments (call.h), finds the
// outputs' windows in the meta cache and appends a node, without boxing. Anything unusual is boxed
// and handed to the catch-all: a first call, a wrong argument, a CPU tensor. When the node runs,
// its typed kernel decodes the arguments (kernels/typed_kernel.h). add_typed_row() makes both from
// a row of the op table.
//
// Thread safety: as the recorder.

#pragma once

#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "ops/dispatch/catch_all.h"
#include "ops/dispatch/traits.h"
#include "ops/kernels/typed_kernel.h"
#include "ops/record/match.h"
#include "ops/record/recorder.h"
#include "ops/run/sync.h"
#include "ops/table/operator_row.h"

namespace hetero::ops {

// ---- arguments -> bytes -------------------------------------------------------------------------

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
requires(!std::is_same_v<T, at::Tensor>) void encode(Sink& sink, const std::optional<T>& value) {
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

// ---- recording ----------------------------------------------------------------------------------

template <typename Op, HiddenWrites hidden = HiddenWrites{}, typename Schema = typename Op::schema>
struct TypedRecorder;

template <typename Op, HiddenWrites hidden, typename R, typename... A>
struct TypedRecorder<Op, hidden, R(A...)> {
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

  // Records the call if it is the predicted one.
  static Recorded match(Outputs& outputs, A&... arguments) {
    if constexpr (hidden.some()) return Recorded::kNo;
    Match match(recorder(), id);
    if (!match.possible()) return Recorded::kNo;
    (encode_argument(match, static_cast<std::remove_reference_t<A>&>(arguments), written), ...);
    if (!match.complete()) return Recorded::kNo;
    return append(match.entry(), outputs, [&](std::span<const at::Tensor> made) { return match.append(made); });
  }

  // Records any call whose outputs are known.
  C10_NOINLINE static Recorded look_up(Outputs& outputs, A&... arguments) {
    Call& call = scratch_call();
    encode_all(call, arguments...);
    if (call.foreign.defined()) return Recorded::kNo;
    const MetaEntry* entry = recorder().expect(id, call);
    if (entry == nullptr || !entry->is_recorded()) return Recorded::kNo;
    return append(*entry, outputs, [&](std::span<const at::Tensor> made) { return recorder().append(id, call, made); });
  }

  static void encode_all(Call& call, A&... arguments) {
    if constexpr (hidden.some()) {
      // The operands of hidden writes are optional tensors of a call that is otherwise ordinary.
      const bool writes = std::get<hidden.flag>(std::forward_as_tuple(arguments...));
      uint32_t index = 0;
      const auto one = [&](auto& argument) {
        const size_t before = call.operands.size();
        encode(call, argument);
        if (writes && hidden.arguments.has(index++) && call.operands.size() > before) {
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

template <typename Op>
std::string full_name() {
  return std::string(Op::name) + (*Op::overload_name ? "." : "") + Op::overload_name;
}

// What a row says that is code, or that code is made of.
template <bool (*own)(const graph::Invocation&) = nullptr, HiddenWrites hidden = HiddenWrites{}>
struct RowCode {
  graph::KernelFunction prepare = nullptr;
  void (*run_together)(const graph::Invocation* calls, size_t count) = nullptr;
  int shared_operand = 0;
  bool takes_memory = false;
  bool called = false;  // the dispatcher calls code that calls the recorder

  template <bool (*function)(const graph::Invocation&)>
  RowCode<function, hidden> with_own() const {
    return {prepare, run_together, shared_operand, takes_memory, called};
  }
  template <HiddenWrites writes>
  RowCode<own, writes> with_hidden() const {
    return {prepare, run_together, shared_operand, takes_memory, called};
  }
  RowCode with_memory() const { return {prepare, run_together, shared_operand, true, called}; }
  RowCode prepared_by(graph::KernelFunction function) const {
    return {function, run_together, shared_operand, takes_memory, called};
  }
  RowCode together_by(void (*function)(const graph::Invocation*, size_t), int operand) const {
    return {prepare, function, operand, takes_memory, called};
  }
  RowCode called_by_code() const { return {prepare, run_together, shared_operand, takes_memory, true}; }
};

// One row of the op table, for an operator whose dispatcher entry is code that calls TypedRecorder
// itself.
template <typename Op, typename Out = NoOut, bool (*own)(const graph::Invocation&) = nullptr,
          HiddenWrites hidden = HiddenWrites{}>
void enter_typed_row(const RowCode<own, hidden>& code) {
  const std::string name = full_name<Op>();
  graph::OpTraits traits = traits_of(name);
  traits.brings_memory = std::is_same_v<Out, NoOut> && !code.takes_memory;
  if constexpr (own == nullptr) {
    traits.kernel = &TypedKernel<Op, Out>::run;
  } else {
    traits.kernel = &own_or_stock<own, &TypedKernel<Op, Out>::run>;
  }
  traits.prepare = code.prepare;
  traits.run_together = code.run_together;
  traits.shared_operand = code.shared_operand;
  using Recorder = TypedRecorder<Op, hidden>;
  Recorder::id = graph::op_table().add(std::move(traits));
  if (describe_operator(name).overwrites) Recorder::written = graph::Access::kWrite;
}

// One row of the op table: enters the traits and makes the recorder known to the dispatcher.
template <typename Op, typename Out = NoOut, bool (*own)(const graph::Invocation&) = nullptr,
          HiddenWrites hidden = HiddenWrites{}>
void add_typed_row(torch::Library& library, const RowCode<own, hidden>& code) {
  enter_typed_row<Op, Out>(code);
  if (!code.called) library.impl(full_name<Op>().c_str(), TORCH_FN((TypedRecorder<Op, hidden>::call)));
}

}  // namespace hetero::ops
