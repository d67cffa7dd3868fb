#include "tests/graph/test_ops.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace hetero::graph::testing {
namespace {

std::atomic<int> effects{0};

constexpr backend::Block::Release kFree = [](void*, void* data, size_t) { std::free(data); };

// The address of element `i`, in row-major order of the window.
float* element(void* data, const Window& window, int64_t i) {
  int64_t position = window.offset;
  for (int d = window.rank; d-- > 0;) {
    position += i % window.dims[d] * window.dims[window.rank + d];
    i /= window.dims[d];
  }
  return static_cast<float*>(data) + position;
}

void compute(const Invocation& call) {
  const Node& node = *call.node;
  std::vector<void*> data(call.data, call.data + node.operand_count);
  for (int k = 0; k < node.operand_count; ++k) {
    if (data[k] != nullptr) continue;
    const Window& window = (*call.windows)[call.operands[k].window];
    const size_t bytes = static_cast<size_t>(window.last_byte) + (window.last_byte == 0 ? 1 : 0);
    call.brought[k] = backend::Block::adopt(std::malloc(bytes), bytes, kFree, nullptr);
    data[k] = call.brought[k].data();
  }
  float constant = 1.0f;
  if (node.attribute_bytes == sizeof(float)) std::memcpy(&constant, call.attributes, sizeof(float));
  for (int k = 0; k < node.operand_count; ++k) {
    if (!call.operands[k].writes()) continue;
    const Window& written = (*call.windows)[call.operands[k].window];
    for (int64_t i = 0; i < written.numel; ++i) {
      float value = constant;
      float factor = 0.5f;
      for (int r = 0; r < node.operand_count; ++r) {
        const Window& window = (*call.windows)[call.operands[r].window];
        if (!call.operands[r].reads() || window.numel == 0) continue;
        value += factor * *element(data[r], window, i % window.numel);
        factor *= 0.5f;
      }
      *element(data[k], written, i) = value;
    }
  }
}

void count_effect(const Invocation& call) {
  compute(call);
  ++effects;
}

void throw_error(const Invocation&) { throw std::runtime_error("broken kernel"); }

void compute_and_throw(const Invocation& call) {
  compute(call);
  throw std::runtime_error("broken kernel");
}

TestOps register_ops() {
  const auto add = [](const char* name, OpClass op_class, KernelFunction kernel, auto adjust) {
    OpTraits traits{.name = name, .op_class = op_class, .kernel = kernel};
    adjust(traits);
    return op_table().add(traits);
  };
  const auto plain = [](OpTraits&) {};
  return {
      .pointwise = add("test::pointwise", OpClass::kPointwise, compute, plain),
      .matmul = add("test::matmul", OpClass::kMatmul, compute, plain),
      .indexing = add("test::indexing", OpClass::kIndexing, compute, plain),
      .cpu_only =
          add("test::cpu_only", OpClass::kOther, compute, [](OpTraits& traits) { traits.on_accelerator = false; }),
      .brings =
          add("test::brings", OpClass::kPointwise, compute, [](OpTraits& traits) { traits.brings_memory = true; }),
      .effect =
          add("test::effect", OpClass::kPointwise, count_effect, [](OpTraits& traits) { traits.side_effects = true; }),
      .throws = add("test::throws", OpClass::kMatmul, throw_error, plain),
      .half_throws = add("test::half_throws", OpClass::kMatmul, compute_and_throw, plain),
  };
}

}  // namespace

const TestOps& test_ops() {
  static const TestOps ops = register_ops();
  return ops;
}

int effect_count() { return effects; }

}  // namespace hetero::graph::testing
