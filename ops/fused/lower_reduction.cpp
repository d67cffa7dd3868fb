// The lowerings of reductions and of what is made of them: softmax, normalization, norms; see
// lower.h.
//
// These are not bitwise PyTorch's: a sum is another order of additions. Sums of blocks are added up
// in double (functions_impl.h), so that results are at least as near to the true ones. Maxima,
// arguments of maxima, any and all are exact.

#include <ATen/core/Reduction.h>

#include <algorithm>
#include <limits>

#include "ops/fused/lower.h"

namespace hetero::ops {
namespace {

using Ref = Builder::Ref;

enum class Over { kAll, kDimensions };

uint64_t dimensions(Builder& b, const Source& x, Over over) {
  if (over == Over::kDimensions) {
    const uint64_t reduced = b.dimensions(x.rank);
    if (b.is_of_pixels(x, reduced)) b.fail("pixels with their channels together");
    return reduced;
  }
  if (x.rank == 0) b.fail();
  return (uint64_t{1} << std::min(x.rank, 63)) - 1;
}

// sum(x), sum(x, dim), and the same of prod: in the dtype of the result.
template <Reduction kReduction, Over kOver>
void accumulated(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(dimensions(b, x, kOver));
  const at::ScalarType common = b.output_dtype();
  b.store(b.reduce(kReduction, common, b.value(x, common)), common);
}

template <Over kOver>
void mean(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(dimensions(b, x, kOver));
  const at::ScalarType common = b.output_dtype();
  const Ref total = b.reduce(Reduction::kSum, common, b.value(x, common));
  b.store(b.with_number(Function::kDiv, common, total, b.exact_number(b.row_length(), common)), common);
}

template <Reduction kReduction, Over kOver>
void extremum(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(dimensions(b, x, kOver));
  b.store(b.reduce(kReduction, x.dtype, b.value(x, x.dtype)), x.dtype);
}

// max(x, dim): values and places.
template <Reduction kValue, Reduction kPlace>
void extremum_and_place(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(dimensions(b, x, Over::kDimensions));
  const Ref value = b.value(x, x.dtype);
  b.store(b.reduce(kValue, x.dtype, value), x.dtype, 0);
  b.store(b.reduce(kPlace, x.dtype, value), at::kLong, 1);
}

template <Reduction kReduction, Over kOver>
void truth(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(dimensions(b, x, kOver));
  b.store(b.reduce(kReduction, at::kBool, b.raw(x, at::kBool)), at::kBool);
}

enum class Spread { kVariance, kDeviation, kVarianceAndMean };

template <Spread kSpread>
void spread(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(dimensions(b, x, Over::kDimensions));
  const std::optional<at::Scalar> correction = b.optional_scalar();
  if (b.failed()) return;
  const double removed = !correction.has_value() ? 1 : correction->toDouble();
  const double freedom = std::max(b.row_length() - removed, 0.0);
  const Ref value = b.value(x, x.dtype);
  Ref result = b.reduce(Reduction::kSquaredDeviation, x.dtype, value);
  result = b.with_number(Function::kDiv, x.dtype, result, b.exact_number(freedom, x.dtype));
  if (kSpread == Spread::kDeviation) result = b.map(Function::kSqrt, x.dtype, {result});
  b.store(result, x.dtype, 0);
  if (kSpread == Spread::kVarianceAndMean) {
    const Ref total = b.reduce(Reduction::kSum, x.dtype, value);
    b.store(b.with_number(Function::kDiv, x.dtype, total, b.exact_number(b.row_length(), x.dtype)), x.dtype, 1);
  }
}

void vector_norm(Builder& b) {
  const Source x = b.tensor();
  const at::Scalar order = b.scalar();
  b.reduce_over(dimensions(b, x, Over::kDimensions));
  const at::ScalarType common = b.output_dtype();
  const backend::Number number = b.number(order, at::kDouble);
  const Ref value = b.value(x, common);
  const Ref total = b.reduce(Reduction::kSum, common, b.map(Function::kNormTerm, common, {value}, {number}));
  const Ref peak = b.reduce(Reduction::kMaximum, common, b.map(Function::kNormPeak, common, {value}, {number}));
  b.store(b.map(Function::kNormResult, common, {total, peak}, {number}), common);
}

void logsumexp(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(dimensions(b, x, Over::kDimensions));
  if (!c10::isFloatingType(x.dtype)) b.fail();
  const Ref value = b.value(x, x.dtype);
  const Ref peak = b.map(Function::kFiniteOrZero, x.dtype, {b.reduce(Reduction::kMaximum, x.dtype, value)});
  const Ref powers = b.map(Function::kExp, x.dtype, {b.map(Function::kSub, x.dtype, {value, peak})});
  const Ref logarithm = b.map(Function::kLog, x.dtype, {b.reduce(Reduction::kSum, x.dtype, powers)});
  b.store(b.map(Function::kAdd, x.dtype, {logarithm, peak}), x.dtype);
}

// _softmax(x, dim, half_to_float)
void softmax(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(b.dimensions(x.rank));
  const at::ScalarType common = b.output_dtype();
  const Ref value = b.value(x, common);
  const Ref peak = b.reduce(Reduction::kPeak, common, value);
  const Ref powers = b.map(Function::kExpFast, common, {b.map(Function::kSub, common, {value, peak})});
  const Ref total = b.reduce(Reduction::kSum, common, powers);
  b.store(b.map(Function::kDiv, common, {powers, total}), common);
}

void log_softmax(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(b.dimensions(x.rank));
  const at::ScalarType common = b.output_dtype();
  const Ref value = b.value(x, common);
  const Ref peak = b.reduce(Reduction::kPeak, common, value);
  const Ref total = b.reduce(Reduction::kSumExpFast, common, value, peak);
  const Ref shifted = b.map(Function::kSub, common, {value, peak});
  b.store(b.map(Function::kSub, common, {shifted, b.map(Function::kLog, common, {total})}), common);
}

// (grad, output, dim, input_dtype)
void softmax_backward(Builder& b) {
  const Source grad = b.tensor(), output = b.tensor();
  b.reduce_over(b.dimensions(grad.rank));
  const at::ScalarType common = grad.dtype;
  if (output.dtype != common || b.output_dtype() != common) b.fail();
  const Ref gradient = b.value(grad, common), y = b.value(output, common);
  const Ref total = b.reduce(Reduction::kSum, common, b.map(Function::kMul, common, {gradient, y}));
  b.store(b.map(Function::kMul, common, {b.map(Function::kSub, common, {gradient, total}), y}), common);
}

void log_softmax_backward(Builder& b) {
  const Source grad = b.tensor(), output = b.tensor();
  b.reduce_over(b.dimensions(grad.rank));
  const at::ScalarType common = grad.dtype;
  if (output.dtype != common || b.output_dtype() != common) b.fail();
  const Ref gradient = b.value(grad, common), y = b.value(output, common);
  const Ref total = b.reduce(Reduction::kSum, common, gradient);
  const Ref share = b.map(Function::kMul, common, {b.map(Function::kExp, common, {y}), total});
  b.store(b.map(Function::kSub, common, {gradient, share}), common);
}

// ---- negative log likelihood --------------------------------------------------------------------

// What both directions need: the row's class, whether it is ignored, and the weight of the class.
struct Target {
  Ref index;
  Ref ignored;
  std::optional<Ref> weight;
};

// `scores`: (rows, classes) or (classes).
Target read_target(Builder& b, const Source& scores, const Source& target, const std::optional<Source>& weight,
                   const at::Scalar& ignored, at::ScalarType common) {
  if (scores.rank < 1 || target.rank != scores.rank - 1) b.fail();
  if (b.failed()) return {};
  b.reduce_over(uint64_t{1} << (scores.rank - 1), scores);
  const Ref index = b.row_value(target, at::kLong);
  const Ref is_ignored =
      b.map_as(Function::kEqual, Form::kNumberRight, at::kLong, at::kBool, {index}, {b.number(ignored, at::kLong)});
  const Ref is_class = b.is_index(index, static_cast<int64_t>(b.row_length()));
  b.check(b.map(Function::kBitwiseOr, at::kBool, {is_ignored, is_class}));
  if (!weight.has_value()) return {index, is_ignored, {}};
  return {index, is_ignored, b.pick(b.value(*weight, common), index)};
}

// In the compute dtype of `common`.
Ref unless(Builder& b, Ref condition, Ref value, at::ScalarType common) {
  const at::ScalarType compute = compute_dtype(common);
  const Ref zero = b.raw(Builder::wrap(0), compute);
  return b.map_as(Function::kWhere, Form::kTensors, compute, compute, {condition, zero, value}, {});
}

// (scores, target, weight, reduction, ignore_index) -> loss, total_weight
void nll_loss(Builder& b) {
  const Source x = b.tensor(), target = b.tensor();
  const std::optional<Source> weight = b.optional_tensor();
  const int64_t reduction = b.integer();
  const at::Scalar ignore_index(b.integer());
  const at::ScalarType common = x.dtype;
  if (!c10::isFloatingType(common) || (weight.has_value() && weight->dtype != common)) b.fail();
  const Target it = read_target(b, x, target, weight, ignore_index, common);
  if (b.failed()) return;
  Ref loss = b.map(Function::kNegate, common, {b.pick(b.value(x, common), it.index)});
  if (it.weight.has_value()) loss = b.map(Function::kMul, common, {loss, *it.weight});
  loss = unless(b, it.ignored, loss, common);
  const at::ScalarType compute = compute_dtype(common);
  if (reduction == at::Reduction::None && x.rank > 1) {
    b.store(loss, common, 0);
    b.store(b.total(common, b.raw(Builder::wrap(0), compute)), common, 1);
    return;
  }
  loss = b.total(common, loss);
  const Ref one = it.weight.has_value() ? *it.weight : b.raw(Builder::wrap(1), compute);
  const Ref total_weight = b.total(common, unless(b, it.ignored, one, common));
  if (reduction == at::Reduction::Mean) loss = b.map(Function::kDiv, common, {loss, total_weight});
  b.store(loss, common, 0);
  b.store(total_weight, common, 1);
}

// (grad, scores, target, weight, reduction, ignore_index, total_weight)
void nll_loss_backward(Builder& b) {
  const Source grad = b.tensor(), x = b.tensor(), target = b.tensor();
  const std::optional<Source> weight = b.optional_tensor();
  const int64_t reduction = b.integer();
  const at::Scalar ignore_index(b.integer());
  const Source total_weight = b.tensor();
  const at::ScalarType common = x.dtype;
  for (const Source& other : {grad, total_weight, weight.value_or(x)}) {
    if (other.dtype != common || other.is_number()) b.fail();
  }
  if (!c10::isFloatingType(common) || target.is_number()) b.fail();
  const Target it = read_target(b, x, target, weight, ignore_index, common);
  if (b.failed()) return;
  b.value(x, common);  // an operand, of which only the sizes count
  const bool by_row = reduction == at::Reduction::None && x.rank > 1;
  Ref value = b.cast(by_row ? b.row_value(grad, common) : b.raw(grad, common), compute_dtype(common));
  const Ref divisor = b.value(total_weight, common);
  if (reduction == at::Reduction::Mean) value = b.map(Function::kDiv, common, {value, divisor});
  value = b.map(Function::kNegate, common, {value});
  if (it.weight.has_value()) value = b.map(Function::kMul, common, {value, *it.weight});
  b.store(b.one_hot(unless(b, it.ignored, value, common), it.index), common);
}

// ---- normalization ------------------------------------------------------------------------------

// (x, normalized_shape, weight, bias, eps) -> y, mean, 1 / deviation
void layer_norm(Builder& b) {
  const Source x = b.tensor();
  const int normalized = b.list_length();
  const std::optional<Source> weight = b.optional_tensor(), bias = b.optional_tensor();
  const at::Scalar epsilon = b.scalar();
  if (normalized == 0 || normalized > x.rank) b.fail();
  if (b.failed()) return;
  b.reduce_over(((uint64_t{1} << normalized) - 1) << (x.rank - normalized));
  // Half dtypes are computed in float32; mean and deviation may be stored so.
  const at::ScalarType compute = compute_dtype(x.dtype);
  const backend::Number length = b.number(b.row_length(), compute);
  const Ref value = b.raw(x, compute);
  const Ref mean = b.with_number(Function::kDiv, compute, b.reduce(Reduction::kSum, compute, value), length);
  const Ref scale =
      b.map(Function::kInverseDeviation, compute, {b.reduce(Reduction::kSquaredDistance, compute, value, mean)},
            {length, b.number(epsilon, compute)});
  const Ref shift = b.map(Function::kNegatedProduct, compute, {mean, scale});
  Ref y = b.map(Function::kMulAdd, compute, {value, scale, shift});
  if (weight.has_value() && bias.has_value()) {
    y = b.map(Function::kMulAdd, compute, {y, b.raw(*weight, compute), b.raw(*bias, compute)});
  } else if (weight.has_value()) {
    y = b.map(Function::kMul, compute, {y, b.raw(*weight, compute)});
  } else if (bias.has_value()) {
    y = b.map(Function::kAdd, compute, {y, b.raw(*bias, compute)});
  }
  b.store(y, x.dtype, 0);
  b.store(mean, compute, 1);
  b.store(scale, compute, 2);
}

// Inference: (x, weight, bias, running_mean, running_var, training, momentum, eps) -> y, and two
// results without entries. An image's pixels of one channel are a row, if they lie together.
void batch_norm(Builder& b) {
  const Source x = b.tensor();
  const std::optional<Source> weight = b.optional_tensor(), bias = b.optional_tensor();
  const std::optional<Source> mean = b.optional_tensor(), variance = b.optional_tensor();
  const bool training = b.boolean();
  b.skip();
  const at::Scalar epsilon = b.scalar();
  if (training || !mean.has_value() || !variance.has_value()) b.fail("statistics of the batch");
  if (x.rank < 2 || x.rank > 8 || !c10::isFloatingType(x.dtype)) b.fail();
  if (b.failed()) return;
  const uint64_t pixels = (uint64_t{1} << x.rank) - 4;
  const bool by_pixel = b.is_of_pixels(x, pixels);
  if (!b.is_contiguous(x) && !by_pixel) b.fail("another layout than those of images");
  if (b.failed()) return;
  if (by_pixel) {
    b.broadcast_along(pixels);
  } else if (x.rank > 2) {
    b.reduce_over(pixels, x);
  }
  const at::ScalarType compute = compute_dtype(x.dtype);
  const auto of_channel = [&](const Source& source) {
    return x.rank > 2 ? b.row_value(source, compute) : b.raw(source, compute);
  };
  Ref scale = b.map(Function::kRsqrt, compute,
                    {b.with_number(Function::kAdd, compute, of_channel(*variance), b.number(epsilon, compute))});
  if (weight.has_value()) scale = b.map(Function::kMul, compute, {scale, of_channel(*weight)});
  Ref shift = b.map(Function::kNegatedProduct, compute, {of_channel(*mean), scale});
  if (bias.has_value()) shift = b.map(Function::kAdd, compute, {shift, of_channel(*bias)});
  b.store(b.map(Function::kMulAdd, compute, {b.raw(x, compute), scale, shift}), x.dtype, 0);
}

// ---- tables -------------------------------------------------------------------------------------

// (weight, indices, ...) -> the rows of weight at the indices
void embedding(Builder& b) {
  const Source weight = b.tensor(), indices = b.tensor();
  if (weight.rank != 2 || indices.is_number()) b.fail();
  if (b.failed()) return;
  b.reduce_over(uint64_t{1} << indices.rank, b.result());
  const Ref index = b.row_value(indices, at::kLong);
  b.check(b.is_index(index, b.size(weight, 0)));
  b.store(b.look_up(weight, index), weight.dtype);
}

}  // namespace

std::span<const LowerFunction> reduction_lowerings() {
  using R = Reduction;
  constexpr Over kAll = Over::kAll, kDimensions = Over::kDimensions;
#define HETERO_ALL_ROWS
#define ROW(...) Lowered() __VA_ARGS__,
#define LOWER_ROWS(...) .by(&lower<__VA_ARGS__>)
  static constexpr LowerFunction kFunctions[] = {
#include "ops/table/op_table.def"
  };
  return kFunctions;
}

}  // namespace hetero::ops
