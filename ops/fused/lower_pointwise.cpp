// The lowerings of pointwise operators; see lower.h. Most are one row of the table at the end.
//
// Which scalars of half-precision calls PyTorch rounds to the half dtype, and which it keeps in
// float32, differs from operator to operator; number() and exact_number() say it for each.

#include <c10/core/DefaultDtype.h>

#include "graph/fusion/footprint.h"
#include "ops/fused/lower.h"

namespace hetero::ops {
namespace {

using Ref = Builder::Ref;

// ---- one operand --------------------------------------------------------------------------------

template <Function kFunction>
void unary(Builder& b) {
  const Source x = b.tensor();
  b.store(b.map(kFunction, x.dtype, {b.value(x, x.dtype)}), x.dtype);
}

// Integers are computed as floats.
template <Function kFunction>
void float_unary(Builder& b) {
  const Source x = b.tensor();
  const at::ScalarType common = as_float(x.dtype);
  b.store(b.map(kFunction, common, {b.value(x, common)}), common);
}

void logical_not(Builder& b) {
  const Source x = b.tensor();
  b.store(b.test(Function::kLogicalNot, x.dtype, {b.value(x, x.dtype)}), at::kBool);
}

void gelu(Builder& b) {
  const Source x = b.tensor();
  const Function function = b.text() == "tanh" ? Function::kGeluTanh : Function::kGelu;
  b.store(b.map(function, x.dtype, {b.value(x, x.dtype)}), x.dtype);
}

// ---- parts of equal size ------------------------------------------------------------------------

constexpr int kMaxParts = graph::kMaxPieces;

// cat, and stack, where a part has size 1 and lacks the dimension.
template <bool kStack>
void cat(Builder& b) {
  Source parts[kMaxParts];
  const int count = b.tensors(parts, kMaxParts);
  const int64_t dimension = b.integer();
  b.cut_into(count, dimension);
  if (b.failed()) return;
  const at::ScalarType dtype = b.output_dtype();
  for (int i = 0; i < count; ++i) {
    const Source& part = parts[i];
    if (part.is_number() || part.rank != b.result().rank - kStack) return b.fail();
    // Equal sizes in all other dimensions are eager's rule.
    const int64_t along = dimension < 0 ? dimension + part.rank : dimension;
    if (!kStack && b.size(part, static_cast<int>(along)) != b.size(parts[0], static_cast<int>(along))) {
      return b.fail("parts of unequal sizes");
    }
    b.store_piece(b.piece(part, dtype), i);
  }
}

// The gradient is one part of the result, and the rest is 0.
void store_part(Builder& b, const Source& gradient, int64_t part, int64_t count, int64_t dimension) {
  if (count > kMaxParts) return b.fail("too many parts");
  if (part < 0 || part >= count) return b.fail();
  b.cut_into(static_cast<int>(count), dimension);
  const at::ScalarType dtype = b.output_dtype();
  const Ref zero = b.raw(Builder::wrap(0), dtype);
  for (int i = 0; i < count && !b.failed(); ++i) b.store_piece(i == part ? b.piece(gradient, dtype) : zero, i);
}

// (grad, input_sizes, dim, index)
void select_backward(Builder& b) {
  const Source gradient = b.tensor();
  b.list_length();
  int64_t dimension = b.integer(), index = b.integer();
  if (b.failed()) return;
  if (dimension < 0) dimension += b.result().rank;
  const int64_t count = b.size(b.result(), static_cast<int>(dimension));
  store_part(b, gradient, index < 0 ? index + count : index, count, dimension);
}

// (grad, input_sizes, dim, start, end, step)
void slice_backward(Builder& b) {
  const Source gradient = b.tensor();
  b.list_length();
  int64_t dimension = b.integer(), start = b.integer();
  b.skip();
  const int64_t step = b.integer();
  if (b.failed() || gradient.is_number() || step != 1) return b.fail();
  if (dimension < 0) dimension += b.result().rank;
  const int64_t size = b.size(b.result(), static_cast<int>(dimension));
  const int64_t length = b.size(gradient, static_cast<int>(dimension));
  if (start < 0) start += size;
  if (length == 0 || size % length != 0 || start % length != 0) return b.fail("parts of unequal sizes");
  store_part(b, gradient, start / length, size / length, dimension);
}

// ---- copies -------------------------------------------------------------------------------------

// The first operand, in the dtype of the output.
void convert(Builder& b) {
  const Source x = b.tensor();
  const at::ScalarType dtype = b.output_dtype();
  b.store(b.raw(x, dtype), dtype);
}

void copy_from_second(Builder& b) {
  b.tensor();
  convert(b);
}

void fill_scalar(Builder& b) {
  b.tensor();
  const Source value = b.wrapped_scalar();
  const at::ScalarType dtype = b.output_dtype();
  b.checked_number(value.number, dtype);
  b.store(b.raw(value, dtype), dtype);
}

void zero(Builder& b) {
  const at::ScalarType dtype = b.output_dtype();
  b.store(b.raw(Builder::wrap(at::Scalar(0)), dtype), dtype);
}

// ---- two operands -------------------------------------------------------------------------------

enum class Right { kTensor, kScalar };
Source second(Builder& b, Right right) { return right == Right::kTensor ? b.tensor() : b.wrapped_scalar(); }

template <Function kFunction, Right kRight = Right::kTensor, bool kExactRight = false>
void binary(Builder& b) {
  const Source x = b.tensor(), y = second(b, kRight);
  const at::ScalarType common = b.common({x, y});
  b.store(b.pair(kFunction, common, compute_dtype(common), x, y, kExactRight), common);
}

template <Function kFunction, Right kRight = Right::kTensor>
void float_binary(Builder& b) {
  const Source x = b.tensor(), y = second(b, kRight);
  const at::ScalarType common = as_float(b.common({x, y}));
  b.store(b.pair(kFunction, common, compute_dtype(common), x, y, kFunction == Function::kDiv), common);
}

template <Function kFunction, Right kRight = Right::kTensor>
void comparison(Builder& b) {
  const Source x = b.tensor(), y = second(b, kRight);
  b.store(b.pair(kFunction, b.common({x, y}), at::kBool, x, y), at::kBool);
}

at::Scalar negated(const at::Scalar& number) {
  return number.isFloatingPoint() ? at::Scalar(-number.toDouble()) : at::Scalar(-number.toLong());
}

void sum_of(Builder& b, const Source& x, const Source& y, const at::Scalar& alpha) {
  const at::ScalarType common = b.common({x, y});
  b.store(b.pair(Function::kAddScaled, common, compute_dtype(common), x, y, false, {b.number(alpha, common)}), common);
}

template <Right kRight>
void add(Builder& b) {
  const Source x = b.tensor(), y = second(b, kRight);
  sum_of(b, x, y, b.scalar());
}

template <Right kRight>
void sub(Builder& b) {
  const Source x = b.tensor(), y = second(b, kRight);
  sum_of(b, x, y, negated(b.scalar()));
}

void rsub(Builder& b) {
  const Source x = b.tensor(), y = b.wrapped_scalar();
  sum_of(b, y, x, negated(b.scalar()));
}

// A product, and then its bias. In 2-byte dtypes eager rounds only once, after the bias.
void addmm(Builder& b) {
  const Source bias = b.tensor();
  b.tensor();
  b.tensor();
  const at::Scalar beta = b.scalar(), alpha = b.scalar();
  const at::ScalarType dtype = b.output_dtype();
  if ((dtype != at::kFloat && dtype != at::kDouble) || !beta.equal(1) || !alpha.equal(1)) {
    return b.fail("a product that is scaled, or rounded after its bias only");
  }
  b.store(b.pair(Function::kAdd, dtype, dtype, b.result(), bias), dtype);
}

void div_mode(Builder& b) {
  const Source x = b.tensor(), y = b.tensor();
  const std::string_view mode = b.text();
  const at::ScalarType common = mode.empty() ? as_float(b.common({x, y})) : b.common({x, y});
  const Function function = mode.empty() ? Function::kDiv : mode == "trunc" ? Function::kDivTrunc : Function::kDivFloor;
  b.store(b.pair(function, common, compute_dtype(common), x, y, true), common);
}

// The exponent decides within the function, since it is a number.
void pow_tensor_scalar(Builder& b) {
  const Source x = b.tensor();
  const Source exponent = b.wrapped_scalar();
  const at::ScalarType common = b.common({x, exponent});
  const bool floating = c10::isFloatingType(common);
  if (!floating && exponent.number.toLong() < 0) b.fail();
  const backend::Number number =
      floating ? b.number(exponent.number, at::kDouble) : b.number(exponent.number, at::kLong);
  b.store(b.with_number(Function::kPow, common, b.value(x, common), number), common);
}

void pow_scalar(Builder& b) {
  const Source base = b.wrapped_scalar(), exponent = b.tensor();
  const at::ScalarType common = b.common({base, exponent});
  b.store(b.pair(Function::kPow, common, compute_dtype(common), base, exponent), common);
}

// Gradients: (grad, x), of the same dtype.
// With numbers of the call behind them, as many as kNumbers.
template <Function kFunction, int kNumbers = 0>
void backward(Builder& b) {
  const Source grad = b.tensor(), x = b.tensor();
  at::Scalar numbers[2];
  for (int i = 0; i < kNumbers; ++i) numbers[i] = b.scalar();
  const at::ScalarType common = b.common({grad, x});
  const auto map = [&](std::initializer_list<backend::Number> exact) {
    b.store(b.map(kFunction, common, {b.value(grad, common), b.value(x, common)}, exact), common);
  };
  if constexpr (kNumbers == 0) map({});
  if constexpr (kNumbers == 1) map({b.exact_number(numbers[0], common)});
  if constexpr (kNumbers == 2) map({b.exact_number(numbers[0], common), b.exact_number(numbers[1], common)});
}

void gelu_backward(Builder& b) {
  const Source grad = b.tensor(), x = b.tensor();
  const at::ScalarType common = b.common({grad, x});
  const Function function = b.text() == "tanh" ? Function::kGeluTanhBackward : Function::kGeluBackward;
  b.store(b.map(function, common, {b.value(grad, common), b.value(x, common)}), common);
}

void threshold_backward(Builder& b) {
  const Source grad = b.tensor(), x = b.tensor();
  const at::Scalar threshold = b.scalar();
  const at::ScalarType common = b.common({grad, x});
  b.store(b.map(Function::kThreshold, common, {b.value(x, common), b.value(grad, common)},
                {b.exact_number(threshold, common), b.exact_number(0, common)}),
          common);
}

// ---- one operand and numbers --------------------------------------------------------------------

void clamp_between(Builder& b, const Source& x, const std::optional<at::Scalar>& low,
                   const std::optional<at::Scalar>& high) {
  at::ScalarType common = x.dtype;
  if (low.has_value()) common = b.common({x, Builder::wrap(*low)});
  if (high.has_value()) {
    common = low.has_value() ? b.common({x, Builder::wrap(*low), Builder::wrap(*high)})
                             : b.common({x, Builder::wrap(*high)});
  }
  const Ref value = b.value(x, common);
  if (low.has_value() && high.has_value()) {
    b.store(b.map(Function::kClamp, common, {value}, {b.checked_number(*low, common), b.checked_number(*high, common)}),
            common);
  } else if (low.has_value()) {
    b.store(b.map(Function::kClampMin, common, {value}, {b.checked_number(*low, common)}), common);
  } else if (high.has_value()) {
    b.store(b.map(Function::kClampMax, common, {value}, {b.checked_number(*high, common)}), common);
  } else {
    b.fail();
  }
}

void clamp(Builder& b) {
  const Source x = b.tensor();
  const std::optional<at::Scalar> low = b.optional_scalar(), high = b.optional_scalar();
  clamp_between(b, x, low, high);
}

void clamp_min(Builder& b) {
  const Source x = b.tensor();
  clamp_between(b, x, b.scalar(), std::nullopt);
}

void clamp_max(Builder& b) {
  const Source x = b.tensor();
  clamp_between(b, x, std::nullopt, b.scalar());
}

// clamp(x + 3, 0, 6), of which eager takes a sixth at the end.
Ref hard_ramp(Builder& b, const Source& x, Ref value) {
  const Ref ramp = b.with_number(Function::kAdd, x.dtype, value, b.number(3, x.dtype));
  return b.map(Function::kClamp, x.dtype, {ramp}, {b.number(0, x.dtype), b.number(6, x.dtype)});
}

void hardsigmoid(Builder& b) {
  const Source x = b.tensor();
  if (!c10::isFloatingType(x.dtype)) b.fail();
  const Ref ramp = hard_ramp(b, x, b.value(x, x.dtype));
  b.store(b.with_number(Function::kDiv, x.dtype, ramp, b.number(6, x.dtype)), x.dtype);
}

void hardswish(Builder& b) {
  const Source x = b.tensor();
  if (!c10::isFloatingType(x.dtype)) b.fail();
  const Ref value = b.value(x, x.dtype);
  const Ref product = b.map(Function::kMul, x.dtype, {value, hard_ramp(b, x, value)});
  b.store(b.with_number(Function::kDiv, x.dtype, product, b.number(6, x.dtype)), x.dtype);
}

void leaky_relu(Builder& b) {
  const Source x = b.tensor();
  const at::Scalar slope = b.scalar();
  b.store(b.map(Function::kLeakyRelu, x.dtype, {b.value(x, x.dtype)}, {b.exact_number(slope, x.dtype)}), x.dtype);
}

// x > 0 ? x : weight * x
void prelu(Builder& b) {
  const Source x = b.tensor(), weight = b.tensor();
  if (!c10::isFloatingType(x.dtype)) b.fail();
  const at::ScalarType compute = compute_dtype(x.dtype);
  const Ref value = b.value(x, x.dtype);
  const Ref is_positive =
      b.map_as(Function::kGreater, Form::kNumberRight, compute, at::kBool, {value}, {b.number(0, compute)});
  const Ref scaled = b.map(Function::kMul, x.dtype, {value, b.value(weight, x.dtype)});
  b.store(b.map_as(Function::kWhere, Form::kTensors, compute, compute, {is_positive, value, scaled}, {}), x.dtype);
}

void elu(Builder& b) {
  const Source x = b.tensor();
  const at::Scalar alpha = b.scalar(), scale = b.scalar(), input_scale = b.scalar();
  backend::Number negative = b.exact_number(alpha, x.dtype);
  const backend::Number positive = b.exact_number(scale, x.dtype);
  if (x.dtype == at::kDouble) {
    negative.f64 *= positive.f64;
  } else {
    negative.f32 *= positive.f32;
  }
  b.store(
      b.map(Function::kElu, x.dtype, {b.value(x, x.dtype)}, {negative, positive, b.exact_number(input_scale, x.dtype)}),
      x.dtype);
}

void softplus(Builder& b) {
  const Source x = b.tensor();
  const at::Scalar beta = b.scalar(), threshold = b.scalar();
  b.store(b.map(Function::kSoftplus, x.dtype, {b.value(x, x.dtype)},
                {b.exact_number(beta, x.dtype), b.exact_number(threshold, x.dtype)}),
          x.dtype);
}

void threshold(Builder& b) {
  const Source x = b.tensor();
  const at::Scalar limit = b.scalar(), value = b.scalar();
  const Ref input = b.value(x, x.dtype);
  b.store(b.map(Function::kThreshold, x.dtype, {input, input},
                {b.exact_number(limit, x.dtype), b.exact_number(value, x.dtype)}),
          x.dtype);
}

// ---- choices ------------------------------------------------------------------------------------

void where(Builder& b) {
  const Source condition = b.tensor(), x = b.tensor(), other = b.tensor();
  if (condition.dtype != at::kBool && condition.dtype != at::kByte) b.fail();
  const at::ScalarType common = b.common({x, other});
  b.store(b.map_as(Function::kWhere, Form::kTensors, common, common,
                   {b.raw(condition, condition.dtype), b.raw(x, common), b.raw(other, common)}, {}),
          common);
}

void masked_fill_scalar(Builder& b) {
  const Source x = b.tensor(), mask = b.tensor();
  const at::Scalar value = b.scalar();
  if (mask.dtype != at::kBool) b.fail();
  b.checked_number(value, x.dtype);
  b.store(b.map_as(Function::kMaskedFill, Form::kTensors, x.dtype, x.dtype, {b.raw(x, x.dtype), b.raw(mask, at::kBool)},
                   {Builder::bits(value, x.dtype)}),
          x.dtype);
}

void masked_fill_tensor(Builder& b) {
  const Source x = b.tensor(), mask = b.tensor(), value = b.tensor();
  if (mask.dtype != at::kBool) b.fail();
  b.store(b.map_as(Function::kWhere, Form::kTensors, x.dtype, x.dtype,
                   {b.raw(mask, at::kBool), b.raw(value, x.dtype), b.raw(x, x.dtype)}, {}),
          x.dtype);
}

// ---- three operands -----------------------------------------------------------------------------

template <Function kFunction>
void addc(Builder& b) {
  const Source self = b.tensor(), x = b.tensor(), y = b.tensor();
  const at::Scalar value = b.scalar();
  const at::ScalarType common = b.common({self, x, y});
  b.store(b.map(kFunction, common, {b.value(self, common), b.value(x, common), b.value(y, common)},
                {b.exact_number(value, common)}),
          common);
}

void lerp_scalar(Builder& b) {
  const Source start = b.tensor(), end = b.tensor();
  const at::Scalar weight = b.scalar();
  const at::ScalarType common = b.common({start, end});
  b.store(b.map(Function::kLerpNumber, common, {b.value(start, common), b.value(end, common)},
                {b.exact_number(weight, common)}),
          common);
}

void lerp_tensor(Builder& b) {
  const Source start = b.tensor(), end = b.tensor(), weight = b.tensor();
  const at::ScalarType common = b.common({start, end, weight});
  b.store(b.map(Function::kLerp, common, {b.value(start, common), b.value(end, common), b.value(weight, common)}),
          common);
}

}  // namespace

std::span<const LowerFunction> pointwise_lowerings() {
  using F = Function;
  constexpr Right kScalar = Right::kScalar;
#define HETERO_ALL_ROWS
#define ROW(...) Lowered() __VA_ARGS__,
#define LOWER(...) .by(&lower<__VA_ARGS__>)
  static constexpr LowerFunction kFunctions[] = {
#include "ops/table/op_table.def"
  };
  return kFunctions;
}

}  // namespace hetero::ops
