// Kernels for tests: a builder, an interpreter that computes them entry by entry, and random ones.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "backend/fused/kernel.h"

namespace hetero::backend::testing {

// Writes a FusedKernel step by step; each function gives the value it makes.
struct KernelBuilder {
  FusedKernel kernel;

  uint16_t value(int bytes, Extent extent) {
    kernel.values.push_back({static_cast<uint8_t>(bytes), extent});
    return static_cast<uint16_t>(kernel.values.size() - 1);
  }
  uint16_t load(uint16_t operand, int bytes, Extent extent = Extent::kElement) {
    touch(operand);
    return add({.kind = FusedStep::Kind::kLoad, .value = value(bytes, extent), .operand = operand});
  }
  uint16_t fill(uint16_t number, int bytes, Extent extent = Extent::kElement) {
    if (kernel.number_count <= number + (bytes - 1) / 8) kernel.number_count = number + 1 + (bytes - 1) / 8;
    return add({.kind = FusedStep::Kind::kFill, .value = value(bytes, extent), .first_number = number});
  }
  uint16_t map(MapFunction function, int bytes, std::initializer_list<uint16_t> inputs,
               Extent extent = Extent::kElement, uint16_t number = 0) {
    FusedStep step{
        .kind = FusedStep::Kind::kMap, .value = value(bytes, extent), .first_number = number, .map = function};
    for (const uint16_t input : inputs) step.inputs[step.input_count++] = input;
    return add(step);
  }
  uint16_t reduce(const Reducer& reducer, int bytes, uint16_t input) {
    FusedStep step{
        .kind = FusedStep::Kind::kReduce, .input_count = 1, .value = value(bytes, Extent::kRow), .reducer = &reducer};
    step.inputs[0] = input;
    return add(step);
  }
  uint16_t total(const Reducer& reducer, int bytes, uint16_t input) {
    const uint16_t made = reduce(reducer, bytes, input);
    kernel.values[made].extent = Extent::kTotal;
    return made;
  }
  uint16_t pick(uint16_t input, uint16_t index) {
    const uint16_t made = reduce(pick_reducer(kernel.values[input].bytes), kernel.values[input].bytes, input);
    kernel.steps.back().inputs[kernel.steps.back().input_count++] = index;
    return made;
  }
  uint16_t one_hot(uint16_t input, uint16_t index) {
    FusedStep step{.kind = FusedStep::Kind::kOneHot,
                   .input_count = 2,
                   .value = value(kernel.values[input].bytes, Extent::kElement)};
    step.inputs[0] = input;
    step.inputs[1] = index;
    return add(step);
  }
  void check(uint16_t value) { add({.kind = FusedStep::Kind::kCheck, .value = value}); }
  void store(uint16_t operand, uint16_t value) {
    touch(operand);
    add({.kind = FusedStep::Kind::kStore, .value = value, .operand = operand});
  }

 private:
  uint16_t add(const FusedStep& step) {
    kernel.steps.push_back(step);
    return step.value;
  }
  void touch(uint16_t operand) {
    if (kernel.operand_count <= operand) kernel.operand_count = operand + 1;
  }
};

// A space of these sizes with `operands` row-major operands of `bytes` each.
FusedSpace dense_space(std::initializer_list<int64_t> sizes, int row_rank, int operands, int bytes);

// Computes the kernel one entry at a time. Loads see the memory as it was before. False where a
// check fails; then nothing was stored.
bool interpret(const FusedKernel& kernel, const FusedSpace& space, void* const* operands, const Number* numbers);

// A random kernel with memory for its operands, some of which share it.
struct RandomCase {
  FusedKernel kernel;
  FusedSpace space;
  std::vector<Number> numbers;
  std::vector<std::vector<char>> memory;
  struct Address {
    int memory;
    int64_t offset;
  };
  std::vector<Address> addresses;  // by operand

  std::vector<void*> pointers(std::vector<std::vector<char>>& in) const;
};
// About `entries` points; rows of about that size where `long_rows`.
RandomCase random_case(std::mt19937& random, int64_t entries, bool long_rows);

}  // namespace hetero::backend::testing
