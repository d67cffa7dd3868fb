#include "ops/shapes/number_check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstring>

#include "ops/kernels/kernel.h"

namespace hetero::ops {
namespace {

// A call but for its tensor's size.
struct Asked {
  static constexpr size_t kMostNumbers = 3;
  struct Number {
    uint64_t bits = 0;
    bool given = false;
    bool operator==(const Number&) const = default;
  };

  graph::OpId op = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::array<Number, kMostNumbers> numbers;
  bool operator==(const Asked&) const = default;

  size_t hash() const {
    uint64_t hash = op * 31u + static_cast<uint64_t>(dtype);
    for (const Number& number : numbers) hash = (hash ^ number.bits) * 0x9E3779B97F4A7C15u;
    return hash >> 32;
  }
};

Asked::Number number_of(const c10::IValue& value) {
  Asked::Number number{0, true};
  if (value.isDouble()) {
    const double real = value.toDouble();
    std::memcpy(&number.bits, &real, sizeof(real));
  } else if (value.isInt()) {
    number.bits = static_cast<uint64_t>(value.toInt());
  } else if (value.isBool()) {
    number.bits = value.toBool() ? 1 : 0;
  } else {
    return {};
  }
  return number;
}

at::Generator& generator() {
  static auto* const instance = new at::Generator(at::detail::createCPUGenerator());
  return *instance;
}

}  // namespace

void check_numbers(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  Asked asked;
  asked.op = info.id;
  asked.dtype = arguments[0].toTensor().scalar_type();
  for (size_t i = 1, n = 0; i < arguments.size() && n < Asked::kMostNumbers; ++i) {
    if (static_cast<int>(i) != info.generator_argument) asked.numbers[n++] = number_of(arguments[i]);
  }
  static thread_local std::array<Asked, 64> lately;
  Asked& known = lately[asked.hash() % lately.size()];
  if (known == asked) return;

  const Isolated isolated;
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  stack[0] = at::zeros({1}, at::TensorOptions().dtype(asked.dtype).device(at::kCPU));
  if (info.generator_argument >= 0) stack[static_cast<size_t>(info.generator_argument)] = generator();
  info.handle.callBoxed(&stack);
  known = asked;
}

}  // namespace hetero::ops
