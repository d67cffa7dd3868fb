#include "ops/kernels/boxed.h"

#include <ATen/core/Generator.h>
#include <ATen/record_function.h>

#include <limits>

#include "ops/kernels/kernel.h"
#include "ops/record/generator.h"
#include "ops/record/running.h"
#include "ops/tensor/reused.h"

namespace hetero::ops {
namespace {

bool encode_value(const OpInfo& info, size_t argument, const c10::IValue& value, Call& call, RandomState random);

bool encode_list(const OpInfo& info, size_t argument, const c10::IValue& value, Call& call, RandomState random) {
  if (value.isIntList()) {
    if (info.is_size[argument]) {
      call.size_list(value.toIntVector());
    } else {
      call.integers(value.toIntVector());
    }
    return true;
  }
  if (value.isDoubleList() && !info.is_number[argument]) {
    const auto numbers = value.toDoubleVector();
    if (info.numbers_decide_shape) {
      call.list(numbers.size());
      for (const double number : numbers) call.shape_real(number);
    } else {
      call.reals(numbers);
    }
    return true;
  }
  const auto elements = value.toListRef();
  call.list(elements.size());
  for (const c10::IValue& element : elements) {
    if (!encode_value(info, argument, element, call, random)) return false;
  }
  return true;
}

// Returns false for a value that cannot be recorded.
bool encode_value(const OpInfo& info, size_t argument, const c10::IValue& value, Call& call, RandomState random) {
  if (static_cast<int>(argument) == info.generator_argument) {
    call.generator(random);
  } else if (value.isTensor()) {
    call.tensor(value.toTensor(), info.access[argument]);
  } else if (value.isNone()) {
    call.none();
  } else if (info.is_number[argument] && value.isScalar()) {
    if (info.numbers_decide_shape) {
      call.shape_scalar(value.toScalar());
    } else {
      call.scalar(value.toScalar());
    }
  } else if (value.isInt() && !info.is_size[argument]) {
    call.integer(value.toInt());
  } else if (value.isInt()) {
    call.size(value.toInt());
  } else if (value.isSymInt()) {
    call.size(value.toSymInt().guard_int(__FILE__, __LINE__));
  } else if (value.isBool()) {
    call.boolean(value.toBool());
  } else if (value.isDouble()) {
    if (info.numbers_decide_shape) {
      call.shape_real(value.toDouble());
    } else {
      call.real(value.toDouble());
    }
  } else if (value.isString()) {
    call.string(value.toStringRef());
  } else if (value.isDevice()) {
    call.device();
  } else if (value.isList()) {
    return encode_list(info, argument, value, call, random);
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool encode(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments, Call& call, RandomState random) {
  call.clear();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!encode_value(info, i, arguments[i], call, random)) return false;
  }
  if (info.seeded) call.generator(random);
  if (makes_no_hidden_writes(info, arguments)) {
    // It reads the running statistics only: the node is the one that the typed recorder makes.
    for (CallOperand& operand : call.operands) operand.access = graph::Access::kRead;
  }
  return call.operands.size() < std::numeric_limits<uint16_t>::max() / 2;
}

void raise_mixed_devices(const at::Tensor& foreign) {
  TORCH_CHECK_NOT_IMPLEMENTED(foreign.layout() == c10::kStrided, "hetero: tensors of layout ", foreign.layout(),
                              " are not held by the device; use .cpu() or .to_dense() first");
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, "
              "hetero:0 and ",
              foreign.device(), "!");
}

RandomState draw(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (info.generator_argument >= 0) {
    const c10::IValue& value = arguments[info.generator_argument];
    return draw_random_state(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()));
  }
  return info.seeded ? draw_random_state(std::nullopt) : RandomState{};
}

namespace {

// Reads one argument of type `type` back.
c10::IValue decode_value(const c10::TypePtr& declared, Decoder& decoder, KernelTensors& tensors) {
  c10::TypePtr type = declared;
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const Tag tag = decoder.next();
  switch (tag) {
    case Tag::kNone:
      return {};
    case Tag::kTensor:
      return tensors.argument(decoder.operand());
    case Tag::kUndefined:
      return at::Tensor();
    case Tag::kConstant:
      return decoder.constant();
    case Tag::kInteger:
    case Tag::kSize:
      return decoder.integer(tag);
    case Tag::kBoolean:
      return decoder.get<uint8_t>() != 0;
    case Tag::kReal:
    case Tag::kShapeReal:
      return decoder.real(tag);
    case Tag::kScalar:
    case Tag::kShapeScalar:
      return decoder.scalar(tag);
    case Tag::kDevice:
      return tensors.device();
    case Tag::kGenerator:
      return derived_generator(decoder.random_state());
    case Tag::kString: {
      const auto length = decoder.get<uint32_t>();
      return std::string(reinterpret_cast<const char*>(decoder.skip(length)), length);
    }
    case Tag::kIntegers:
    case Tag::kSizes: {
      const auto length = decoder.get<uint32_t>();
      c10::List<int64_t> list;
      for (uint32_t i = 0; i < length; ++i) {
        list.push_back(tag == Tag::kSizes ? decoder.get_size<int64_t>() : decoder.get<int64_t>());
      }
      return list;
    }
    case Tag::kReals: {
      const auto length = decoder.get<uint32_t>();
      c10::List<double> list;
      for (uint32_t i = 0; i < length; ++i) list.push_back(decoder.get_value<double>());
      return list;
    }
    case Tag::kList: {
      const auto length = decoder.get<uint32_t>();
      const c10::TypePtr element = type->expect<c10::ListType>()->getElementType();
      auto list = c10::impl::GenericList(element);
      for (uint32_t i = 0; i < length; ++i) list.push_back(decode_value(element, decoder, tensors));
      return list;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "hetero: damaged attributes");
}

void push_arguments(const c10::FunctionSchema& schema, Decoder& decoder, KernelTensors& tensors,
                    torch::jit::Stack& stack) {
  for (const c10::Argument& argument : schema.arguments()) {
    stack.push_back(decode_value(argument.type(), decoder, tensors));
  }
}

// Whether the memory is still the node's, and looks as it says. A kernel may give what it writes
// another shape.
bool is_kept(const at::Tensor& written, const graph::Invocation& invocation, int i) {
  const graph::Window& window = (*invocation.windows)[invocation.operands[i].window];
  const auto rank = static_cast<size_t>(window.rank);
  return written.storage().data() == invocation.data[i] && written.storage_offset() == window.offset &&
         written.sizes() == c10::IntArrayRef(window.dims, rank) &&
         written.strides() == c10::IntArrayRef(window.dims + rank, rank);
}

// Makes an alias look as the window says again: it is used for the next call, in which nothing else
// would say how much memory there is.
void restore(const at::Tensor& alias, const graph::Window& window) {
  const auto rank = static_cast<size_t>(window.rank);
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(window.dims, rank),
                                                     c10::IntArrayRef(window.dims + rank, rank), window.offset);
  alias.storage().unsafeGetStorageImpl()->set_nbytes(static_cast<size_t>(window.last_byte));
}

// The operands that the node writes, before it runs.
std::vector<std::pair<int, at::Tensor>> written_operands(const graph::Invocation& invocation, KernelTensors& tensors) {
  std::vector<std::pair<int, at::Tensor>> written;
  for (int i = 0; i < tensors.first_output(); ++i) {
    if (invocation.operands[i].writes()) written.emplace_back(i, tensors.argument(i));
  }
  return written;
}

// The kernel of a node that a file describes wrongly resizes them. A kernel may give other strides
// to what has no elements.
void check_kept(const std::vector<std::pair<int, at::Tensor>>& written, const graph::Invocation& invocation) {
  for (const auto& [i, tensor] : written) {
    if (is_kept(tensor, invocation, i)) continue;
    const graph::Window& window = (*invocation.windows)[invocation.operands[i].window];
    const std::string made = c10::str(tensor.sizes());
    const bool is_empty_still = tensor.numel() == 0 && made == c10::str(c10::IntArrayRef(window.dims, window.rank));
    restore(tensor, window);
    TORCH_CHECK(is_empty_still, "hetero: ", invocation.traits->name, " writes ", made, " to an operand that is ",
                graph::to_string(window));
  }
}

// Into the outputs' own memory.
void call_out(const graph::Invocation& invocation, const c10::OperatorHandle& out, KernelTensors& tensors,
              torch::jit::Stack& stack) {
  Reused<std::vector<at::Tensor>> outputs;
  for (int i = tensors.first_output(); i < invocation.node->operand_count; ++i) {
    outputs->push_back(tensors.operand(i));
    stack.emplace_back(outputs->back());
  }
  with_line(invocation.node->sequence, [&] { out.callBoxed(&stack); });
  stack.clear();
  for (int i = tensors.first_output(); i < invocation.node->operand_count; ++i) {
    const at::Tensor& made = (*outputs)[static_cast<size_t>(i - tensors.first_output())];
    if (is_kept(made, invocation, i)) continue;
    at::Tensor result = made.clone();
    restore(made, (*invocation.windows)[invocation.operands[i].window]);
    tensors.deliver(i, std::move(result));
  }
}

}  // namespace

torch::jit::Stack arguments_of(const c10::FunctionSchema& schema, Decoder& decoder, KernelTensors& tensors) {
  torch::jit::Stack stack;
  push_arguments(schema, decoder, tensors, stack);
  return stack;
}

c10::OperatorHandle handle_of(const OpInfo& info) {
  if (is_aten(info.name)) return info.handle;
  // Allocates nothing.
  if (auto found = c10::Dispatcher::singleton().findSchema(info.operator_name)) return *found;
  return c10::Dispatcher::singleton().findSchemaOrThrow(info.operator_name.name.c_str(),
                                                        info.operator_name.overload_name.c_str());
}

void call_operator(const graph::Invocation& invocation, const OpInfo& info, const c10::OperatorHandle& handle,
                   const c10::OperatorHandle* out) {
  RECORD_FUNCTION(info.name.c_str(), std::vector<c10::IValue>());
  KernelTensors tensors(invocation);
  Decoder decoder(invocation.attributes, invocation.node->attribute_bytes);
  Reused<torch::jit::Stack> reused;
  torch::jit::Stack& stack = *reused;
  push_arguments(handle.schema(), decoder, tensors, stack);
  // Some outputs the Meta kernel leaves undefined.
  if (out != nullptr && static_cast<size_t>(invocation.node->output_count) == info.returns.size()) {
    return call_out(invocation, *out, tensors, stack);
  }
  SeededDefaultGenerator seeded(info.seeded, info.seeded ? (decoder.next(), decoder.random_state()) : RandomState{});
  const auto written = written_operands(invocation, tensors);
  with_line(invocation.node->sequence, [&] { handle.callBoxed(&stack); });
  check_kept(written, invocation);

  int output = tensors.first_output();
  bool leaves_out = false;
  const auto take = [&](at::Tensor result) {
    // Outputs that the Meta kernel left undefined have no operand; some that it makes the kernel
    // leaves out, when nobody asked for them.
    leaves_out |= !result.defined();
    if (!result.defined() || output >= invocation.node->operand_count) return;
    tensors.deliver(output++, std::move(result));
  };
  for (size_t r = 0; r < info.returns.size(); ++r) {
    if (info.returns[r] == OpInfo::Return::kTensor) {
      take(std::exchange(stack[r], c10::IValue()).toTensor());
    } else if (info.returns[r] == OpInfo::Return::kTensorList) {
      c10::IValue list = std::exchange(stack[r], c10::IValue());
      auto items = list.toTensorVector();
      list = c10::IValue();
      for (at::Tensor& item : items) take(std::exchange(item, at::Tensor()));
    }
  }
  stack.clear();
  TORCH_CHECK(leaves_out || output == invocation.node->operand_count, "hetero: the kernel of ", info.name, " made ",
              output - tensors.first_output(), " tensors in place of ", invocation.node->output_count);
}

void boxed_kernel(const graph::Invocation& invocation) {
  const auto& info = *static_cast<const OpInfo*>(invocation.traits->self);
  Isolated isolated;
  call_operator(invocation, info, handle_of(info), nullptr);
}

}  // namespace hetero::ops
