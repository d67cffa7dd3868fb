// A plain interpreter of lowerings, which takes the place of the kernels of operators that can be lowered (lower_test.cpp).
//
// It evaluates the program value by value on dense arrays, in blocks of an odd length.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "graph/ir/lowering.h"
#include "ops/kernels/kernel.h"

namespace hetero::ops::testing {

inline constexpr int64_t kBlock = 777;

// What was evaluated, and what could not be lowered.
inline std::map<std::string, int> lowered_calls;
inline std::map<std::string, int> refused_calls;
inline std::map<const graph::OpTraits*, graph::KernelFunction> stock_kernels;

struct Evaluated {
  std::vector<std::byte> bytes = {};
  bool row = false;
  bool total = false;
};

class Evaluation {
 public:
  Evaluation(const graph::Invocation& invocation, const graph::Lowering& program, KernelTensors& tensors)
      : invocation_(invocation), program_(program), tensors_(tensors) {
    const int shape_operand = program.reduced != 0 ? program.space : program.outputs.at(0).operand;
    const graph::Window& window = window_of(shape_operand);
    sizes_.assign(window.sizes().begin(), window.sizes().end());
    // Dimensions that stay come first, so that a row is contiguous.
    for (const bool gone : {false, true}) {
      for (int64_t i = 0; i < window.rank; ++i) {
        if (((program.reduced >> i & 1) != 0) != gone) continue;
        order_.push_back(i);
        (gone ? length_ : rows_) *= sizes_[i];
        if (!gone) kept_.push_back(sizes_[i]);
      }
    }
    if (program.reduced == 0) std::swap(rows_, length_);  // one row
  }

  void run() {
    for (const graph::Lowering::Value& value : program_.values) values_.push_back(evaluate(value));
    for (const graph::Lowering::Ref checked : program_.checks) {
      for (const std::byte holds : values_[checked].bytes) EXPECT_NE(holds, std::byte{0});
    }
    for (const graph::Lowering::Output& output : program_.outputs) store(output);
  }

 private:
  const graph::Window& window_of(int operand) const {
    return (*invocation_.windows)[invocation_.operands[operand].window];
  }

  static int64_t entry_bytes(const graph::Lowering::Value& value) {
    return static_cast<int64_t>(c10::elementSize(static_cast<at::ScalarType>(value.dtype)));
  }
  const backend::Number* numbers_of(const graph::Lowering::Value& value) const {
    return program_.numbers.data() + value.first_number;
  }
  int64_t count_of(const Evaluated& value) const { return value.total ? 1 : value.row ? rows_ : rows_ * length_; }

  Evaluated evaluate(const graph::Lowering::Value& value) {
    using Kind = graph::Lowering::Value::Kind;
    switch (value.kind) {
      case Kind::kOperand:
        return read_operand(value);
      case Kind::kRowOperand:
        return read_rows(value);
      case Kind::kNumber:
        return fill(value);
      case Kind::kMap:
        return map(value);
      case Kind::kPick:
      case Kind::kOneHot:
        return move_entries(value);
      case Kind::kPieceOperand:
      case Kind::kLookUp:
        ADD_FAILURE() << "pieces and tables have their tests in tests/graph and tests/python";
        return {};
      case Kind::kTotal:
        return total(value);
      case Kind::kReduce:
        return reduce(value);
    }
    return {};
  }

  static Evaluated bytes_of(const at::Tensor& tensor, bool row) {
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    return {.bytes = {data, data + tensor.nbytes()}, .row = row};
  }

  Evaluated read_operand(const graph::Lowering::Value& value) {
    at::Tensor tensor = tensors_.operand(value.operand);
    EXPECT_EQ(static_cast<graph::DType>(tensor.scalar_type()), value.dtype);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) tensor = tensor.clone();
    // One entry for all points is one for each row as well.
    const bool row = program_.reduced != 0 && tensor.numel() == 1;
    return bytes_of(
        row ? tensor.reshape({}).expand(kept_).contiguous() : tensor.expand(sizes_).permute(order_).contiguous(), row);
  }

  Evaluated read_rows(const graph::Lowering::Value& value) {
    const at::Tensor tensor = tensors_.operand(value.operand).contiguous();
    EXPECT_EQ(tensor.sizes(), c10::IntArrayRef(kept_));
    return bytes_of(tensor, true);
  }

  Evaluated fill(const graph::Lowering::Value& value) {
    const int64_t bytes = entry_bytes(value);
    Evaluated result{.row = program_.reduced != 0};
    result.bytes.resize(count_of(result) * bytes);
    for (size_t at = 0; at < result.bytes.size(); at += bytes) {
      std::memcpy(&result.bytes[at], numbers_of(value), bytes);
    }
    return result;
  }

  Evaluated map(const graph::Lowering::Value& value) {
    const int64_t bytes = entry_bytes(value);
    Evaluated result{.row = program_.reduced != 0};
    for (int i = 0; i < value.input_count; ++i) {
      result.row = result.row && values_[value.inputs[i]].row;
      result.total = result.total || values_[value.inputs[i]].total;
    }
    const int64_t n = count_of(result);
    result.bytes.resize(n * bytes);
    std::vector<std::byte> repeated[4];
    const std::byte* inputs[4] = {};
    int64_t input_bytes[4] = {};
    for (int i = 0; i < value.input_count; ++i) {
      const Evaluated& input = values_[value.inputs[i]];
      input_bytes[i] = entry_bytes(program_.values[value.inputs[i]]);
      if (input.row && !result.row) repeated[i] = repeat(input, input_bytes[i]);
      inputs[i] = input.row && !result.row ? repeated[i].data() : input.bytes.data();
    }
    for (int64_t at = 0; at < n; at += kBlock) {
      const void* block[4];
      for (int i = 0; i < 4; ++i) block[i] = inputs[i] == nullptr ? nullptr : inputs[i] + at * input_bytes[i];
      value.map(result.bytes.data() + at * bytes, block, numbers_of(value), std::min(kBlock, n - at));
    }
    return result;
  }

  // A row value for each point.
  std::vector<std::byte> repeat(const Evaluated& input, int64_t bytes) const {
    std::vector<std::byte> repeated;
    for (int64_t row = 0; row < rows_; ++row) {
      const std::byte* entry = input.bytes.data() + row * bytes;
      for (int64_t k = 0; k < length_; ++k) repeated.insert(repeated.end(), entry, entry + bytes);
    }
    return repeated;
  }

  // One entry of each row, or to one.
  Evaluated move_entries(const graph::Lowering::Value& value) {
    const int64_t bytes = entry_bytes(value);
    const Evaluated& from = values_[value.inputs[0]];
    EXPECT_TRUE(values_[value.inputs[1]].row);
    Evaluated result{.row = value.kind == graph::Lowering::Value::Kind::kPick};
    EXPECT_EQ(from.row, !result.row);
    result.bytes.resize(count_of(result) * bytes);
    for (int64_t row = 0; row < rows_; ++row) {
      int64_t index;
      std::memcpy(&index, values_[value.inputs[1]].bytes.data() + row * sizeof(index), sizeof(index));
      if (index < 0 || index >= length_) continue;
      const int64_t point = row * length_ + index;
      std::memcpy(result.bytes.data() + (result.row ? row : point) * bytes,
                  from.bytes.data() + (result.row ? point : row) * bytes, bytes);
    }
    return result;
  }

  Evaluated total(const graph::Lowering::Value& value) {
    EXPECT_TRUE(values_[value.inputs[0]].row);
    Evaluated result{.row = true, .total = true};
    result.bytes.resize(entry_bytes(value));
    alignas(64) std::byte state[backend::kMaxReducerState];
    value.reducer->begin(state);
    value.reducer->add(state, values_[value.inputs[0]].bytes.data(), rows_, 0);
    value.reducer->finish(state, result.bytes.data());
    return result;
  }

  Evaluated reduce(const graph::Lowering::Value& value) {
    EXPECT_FALSE(values_[value.inputs[0]].row);
    const int64_t bytes = entry_bytes(value), entry = entry_bytes(program_.values[value.inputs[0]]);
    Evaluated result{.row = true};
    result.bytes.resize(rows_ * bytes);
    alignas(64) std::byte first[backend::kMaxReducerState], second[backend::kMaxReducerState];
    for (int64_t row = 0; row < rows_; ++row) {
      // The later half is reduced on its own and merged.
      for (std::byte* state : {first, second}) {
        if (value.input_count == 1) {
          value.reducer->begin(state);
        } else {
          const Evaluated& parameters = values_[value.inputs[1]];
          EXPECT_TRUE(parameters.row);
          value.reducer->begin_with(state, parameters.bytes.data() + row * value.reducer->parameter_bytes);
        }
      }
      const std::byte* in = values_[value.inputs[0]].bytes.data() + row * length_ * entry;
      const int64_t middle = length_ - length_ / 2;
      for (int64_t at = 0; at < length_;) {
        const int64_t end = std::min(at + kBlock, at < middle ? middle : length_);
        value.reducer->add(at < middle ? first : second, in + at * entry, end - at, at);
        at = end;
      }
      value.reducer->merge(first, second);
      value.reducer->finish(first, result.bytes.data() + row * bytes);
    }
    return result;
  }

  void store(const graph::Lowering::Output& output) {
    const graph::Window& window = window_of(output.operand);
    ASSERT_EQ(program_.values.at(output.value).dtype, window.dtype);
    Evaluated& value = values_[output.value];
    const auto dtype = static_cast<at::ScalarType>(window.dtype);
    const c10::IntArrayRef sizes(window.dims, window.rank), strides(window.dims + window.rank, window.rank);
    at::Tensor result = at::empty_strided(sizes, strides, at::TensorOptions(dtype));
    if (value.total) {
      result.fill_(at::from_blob(value.bytes.data(), {}, dtype));
    } else if (value.row) {
      result.copy_(at::from_blob(value.bytes.data(), kept_, dtype).reshape(sizes));
    } else {
      std::vector<int64_t> permuted, back(order_.size());
      for (size_t i = 0; i < order_.size(); ++i) {
        permuted.push_back(sizes_[order_[i]]);
        back[order_[i]] = static_cast<int64_t>(i);
      }
      result.copy_(at::from_blob(value.bytes.data(), permuted, dtype).permute(back));
    }
    if (output.operand >= tensors_.first_output()) {
      tensors_.deliver(output.operand, std::move(result));
    } else {
      tensors_.operand(output.operand).copy_(result);
    }
  }

  const graph::Invocation& invocation_;
  const graph::Lowering& program_;
  KernelTensors& tensors_;
  std::vector<int64_t> sizes_, order_, kept_;
  int64_t rows_ = 1, length_ = 1;
  std::vector<Evaluated> values_;
};

inline void lowered_kernel(const graph::Invocation& invocation) {
  graph::Lowering program;
  const graph::LowerRequest request{invocation.node, invocation.operands, invocation.attributes, invocation.windows,
                                    invocation.traits};
  if (!invocation.traits->lower(request, program)) {
    ++refused_calls[invocation.traits->name];
    stock_kernels.at(invocation.traits)(invocation);
    return;
  }
  ++lowered_calls[invocation.traits->name];
  Isolated isolated;
  KernelTensors tensors(invocation);
  Evaluation(invocation, program, tensors).run();
}

inline void replace_kernels() {
  const graph::OpTable& table = graph::op_table();
  for (graph::OpId id = 0; id < table.size(); ++id) {
    auto& traits = const_cast<graph::OpTraits&>(table[id]);
    if (traits.lower == nullptr || traits.kernel == &lowered_kernel) continue;
    stock_kernels[&traits] = traits.kernel;
    traits.kernel = &lowered_kernel;
  }
}

inline void restore_kernels() {
  for (const auto& [traits, kernel] : stock_kernels) const_cast<graph::OpTraits*>(traits)->kernel = kernel;
  stock_kernels.clear();
}

}  // namespace hetero::ops::testing
