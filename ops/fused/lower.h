// Lowerings: how the op table's operators are computed in fused kernels, for the fusion pass
// (graph/ir/lowering.h).
//
// lowering_of("aten::add_.Tensor") is OpTraits::lower of that operator. LOWER and LOWER_ROWS of the
// op table name a function of lower_pointwise.cpp or lower_reduction.cpp. An in-place form without
// one has that of "aten::add.Tensor": it computes the same and stores to its first argument.
//
// A lowering is a function of a Builder. It reads the arguments in schema order, combines values,
// and stores:
//
//   void sigmoid(Builder& b) {
//     const Source x = b.tensor();
//     const at::ScalarType common = as_float(b.common({x}));
//     b.store(b.map(Function::kSigmoid, common, {b.value(x, common)}), common);
//   }
//
// `common` is the dtype that PyTorch computes in. Between value() and store(), half dtypes are
// float32 (see functions.h). store() rounds each value that PyTorch would round. If something has
// no exact function, the Builder fails and the call is not fused.
//
// Thread safety: a Builder belongs to one thread.

#pragma once

#include <c10/core/Scalar.h>

#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "graph/ir/lowering.h"
#include "ops/fused/functions.h"
#include "ops/record/call.h"

namespace hetero::ops {

using LowerFunction = bool (*)(const graph::LowerRequest& request, graph::Lowering& lowering);

// Null if the operator is not fused.
LowerFunction lowering_of(std::string_view name);

// A tensor argument, or a number in its place.
struct Source {
  int operand = -1;  // of the node; -1 for a number
  at::ScalarType dtype = at::kFloat;
  int rank = 0;
  bool wrapped = false;  // a Python number, which does not promote as a tensor does
  at::Scalar number{};

  bool is_number() const { return operand < 0; }
};

class Builder {
 public:
  using Ref = graph::Lowering::Ref;

  Builder(const graph::LowerRequest& request, graph::Lowering& lowering);

  // ---- arguments, in schema order ----
  Source tensor();
  // The output-th result, as the body of a node with a tail leaves it.
  Source result(int output = 0) const;
  std::optional<Source> optional_tensor();
  // A list of at most `limit` tensors. The call fails if there are more. Returns their number.
  int tensors(Source* list, int limit);
  at::Scalar scalar();  // also of a double
  std::optional<at::Scalar> optional_scalar();
  Source wrapped_scalar() { return wrap(scalar()); }
  static Source wrap(const at::Scalar& number);
  int64_t integer();
  bool boolean();
  std::string_view text();  // empty for none
  int64_t size(const Source& source, int dimension) const { return window(source.operand).sizes()[dimension]; }
  // Whether its entries are in row-major order without gaps.
  bool is_contiguous(const Source& source) const;
  // Whether the dimensions are the pixels of images with their channels last. A fused kernel would
  // copy such images to have their rows, and those of what it computes together with a reduction.
  // PyTorch's kernels read them as they lie.
  bool is_of_pixels(const Source& source, uint64_t dimensions) const;
  // The number of integers in a list.
  int list_length();
  // An optional int, an optional list of ints: dimensions of a tensor of this rank. None and an
  // empty list stand for all.
  uint64_t dimensions(int rank);
  void skip() { (void)read_any(); }

  // ---- dtypes ----
  // What PyTorch promotes these to.
  at::ScalarType common(std::initializer_list<Source> sources) const;
  at::ScalarType output_dtype(int output = 0) const;

  // ---- values ----
  // The source in the compute dtype of `common`, rounded to `common` before.
  Ref value(const Source& source, at::ScalarType common);
  // The source in this very dtype, for what moves bits.
  Ref raw(const Source& source, at::ScalarType dtype);
  Ref cast(Ref value, at::ScalarType to);
  // The number as functions of `common` take it.
  backend::Number number(const at::Scalar& value, at::ScalarType common) const;
  // The same for one that PyTorch keeps in the compute dtype.
  backend::Number exact_number(const at::Scalar& value, at::ScalarType common) const {
    return number(value, compute_dtype(common));
  }
  // As number(), but the call fails if the number is too large for the dtype, because PyTorch
  // raises an error then.
  backend::Number checked_number(const at::Scalar& value, at::ScalarType common);
  static backend::Number bits(const at::Scalar& value, at::ScalarType dtype);

  Ref map(Function function, at::ScalarType common, std::initializer_list<Ref> inputs,
          std::initializer_list<backend::Number> numbers = {}) {
    return map_as(function, Form::kTensors, common, compute_dtype(common), inputs, numbers);
  }
  // To bool.
  Ref test(Function function, at::ScalarType common, std::initializer_list<Ref> inputs) {
    return map_as(function, Form::kTensors, common, at::kBool, inputs, {});
  }
  // A function of two, either of which may be a number. With `exact_right` a second operand that is
  // a single number is not rounded to a half dtype.
  Ref pair(Function function, at::ScalarType common, at::ScalarType result, const Source& left, const Source& right,
           bool exact_right = false, std::initializer_list<backend::Number> numbers = {});
  // A function of a value and a number.
  Ref with_number(Function function, at::ScalarType common, Ref value, backend::Number number) {
    return map_as(function, Form::kNumberRight, common, compute_dtype(common), {value}, {number});
  }
  Ref map_as(Function function, Form form, at::ScalarType common, at::ScalarType result,
             std::initializer_list<Ref> inputs, std::initializer_list<backend::Number> numbers);

  // ---- pieces ----
  // The result consists of `count` pieces along a dimension.
  void cut_into(int count, int64_t dimension);
  // A source that has the sizes of a piece, in this very dtype.
  Ref piece(const Source& source, at::ScalarType dtype);
  void store_piece(Ref value, int piece);

  // ---- rows ----
  // Of `space`, a tensor argument; without one the first operand. REQUIRES: before the first
  // reduce().
  void reduce_over(uint64_t dimensions, const Source& space = {.operand = 0});
  Ref reduce(Reduction reduction, at::ScalarType common, Ref value);
  Ref reduce(Reduction reduction, at::ScalarType common, Ref value, Ref parameter);
  // In a call that reduces nothing: row values lack these dimensions, the last of the result.
  void broadcast_along(uint64_t dimensions) { lowering_.beside = dimensions; }
  // Of the space, along the reduced dimensions.
  double row_length() const;
  // A source whose dimensions are those that are not reduced, in this very dtype.
  Ref row_value(const Source& source, at::ScalarType dtype);
  // See graph/ir/lowering.h. `index` is an int64 row value.
  Ref pick(Ref value, Ref index) { return failed_ ? Ref{0} : lowering_.pick(value, index); }
  Ref look_up(const Source& table, Ref index) {
    if (table.is_number()) fail();
    return failed_ ? Ref{0} : lowering_.look_up(table.operand, static_cast<graph::DType>(table.dtype), index);
  }
  // Whether the int64 row value is in [0, size).
  Ref is_index(Ref index, int64_t size);
  Ref one_hot(Ref value, Ref index) { return failed_ ? Ref{0} : lowering_.one_hot(value, index); }
  // The sum over all rows.
  Ref total(at::ScalarType common, Ref value);
  void check(Ref condition) {
    if (!failed_) lowering_.check(condition);
  }

  // ---- results ----
  // The value becomes the output-th result, or the in-place operator's first argument. `common`:
  // what it is rounded to first.
  void store(Ref value, at::ScalarType common, int output = 0);

  // `why`: a literal.
  void fail(const char* why = nullptr) {
    if (!failed_) lowering_.refusal = why;
    failed_ = true;
  }
  bool failed() const { return failed_; }

 private:
  struct Any {
    Tag tag;
    int64_t integer = 0;
  };
  Any read_any();
  const graph::Window& window(int operand) const { return request_.window(operand); }
  Source read_tensor(Tag tag);
  int output_operand(int output) const;

  backend::MapFunction find(Function function, Form form, at::ScalarType common,
                            std::span<const backend::Number> numbers);
  bool fills_vectors() const;

  const graph::LowerRequest& request_;
  graph::Lowering& lowering_;
  Decoder decoder_;
  bool failed_ = false;
};

// Integers as the default dtype.
at::ScalarType as_float(at::ScalarType dtype);

template <void (*kBody)(Builder&)>
bool lower(const graph::LowerRequest& request, graph::Lowering& lowering) {
  Builder builder(request, lowering);
  if (!builder.failed()) kBody(builder);
  return !builder.failed();
}

// What LOWER and LOWER_ROWS of the op table name, an entry for each row.
std::span<const LowerFunction> pointwise_lowerings();
std::span<const LowerFunction> reduction_lowerings();

// An entry while it is written down.
struct Lowered {
  LowerFunction function = nullptr;
  constexpr Lowered by(LowerFunction lowering) const { return {lowering}; }
  constexpr operator LowerFunction() const { return function; }
};

}  // namespace hetero::ops
