// The lowerings of reductions and of what is made of them: softmax, normalization, norms; see lower.h.
//
// These are not bitwise PyTorch's: a sum is another order of additions. Sums of blocks are added up in double
// (functions_impl.h), so that results are at least as near to the true ones. Maxima, arguments of maxima, any and all
// are exact.

#include <algorithm>
#include <limits>

#include "ops/fused/lower.h"

namespace hetero::ops {
namespace {

using Ref = Builder::Ref;

enum class Over { kAll, kDimensions };

uint64_t dimensions(Builder& b, const Source& x, Over over) {
  if (over == Over::kDimensions) return b.dimensions(x.rank);
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
  b.reduce_over(b.dimensions(x.rank));
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
  b.reduce_over(b.dimensions(x.rank));
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
  b.reduce_over(b.dimensions(x.rank));
  const at::ScalarType common = b.output_dtype();
  const backend::Number number = b.number(order, at::kDouble);
  const Ref value = b.value(x, common);
  const Ref total = b.reduce(Reduction::kSum, common, b.map(Function::kNormTerm, common, {value}, {number}));
  const Ref peak = b.reduce(Reduction::kMaximum, common, b.map(Function::kNormPeak, common, {value}, {number}));
  b.store(b.map(Function::kNormResult, common, {total, peak}, {number}), common);
}

void logsumexp(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(b.dimensions(x.rank));
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
  const Ref peak = b.reduce(Reduction::kMaximum, common, value);
  const Ref powers = b.map(Function::kExpFast, common, {b.map(Function::kSub, common, {value, peak})});
  const Ref total = b.reduce(Reduction::kSum, common, powers);
  b.store(b.map(Function::kDiv, common, {powers, total}), common);
}

void log_softmax(Builder& b) {
  const Source x = b.tensor();
  b.reduce_over(b.dimensions(x.rank));
  const at::ScalarType common = b.output_dtype();
  const Ref value = b.value(x, common);
  const Ref peak = b.reduce(Reduction::kMaximum, common, value);
  const Ref shifted = b.map(Function::kSub, common, {value, peak});
  const Ref total = b.reduce(Reduction::kSum, common, b.map(Function::kExpFast, common, {shifted}));
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
  const Ref variance =
      b.with_number(Function::kDiv, compute, b.reduce(Reduction::kSquaredDeviation, compute, value), length);
  const Ref scale =
      b.map(Function::kRsqrt, compute, {b.with_number(Function::kAdd, compute, variance, b.number(epsilon, compute))});
  Ref y = b.map(Function::kMul, compute, {b.map(Function::kSub, compute, {value, mean}), scale});
  if (weight.has_value()) y = b.map(Function::kMul, compute, {y, b.raw(*weight, compute)});
  if (bias.has_value()) y = b.map(Function::kAdd, compute, {y, b.raw(*bias, compute)});
  b.store(y, x.dtype, 0);
  b.store(mean, compute, 1);
  b.store(scale, compute, 2);
}

}  // namespace

std::initializer_list<LowerRow> reduction_lowerings() {
  using R = Reduction;
  constexpr Over kAll = Over::kAll, kDimensions = Over::kDimensions;
  static constexpr auto kRows = {
      LowerRow{"aten::sum", lower<accumulated<R::kSum, kAll>>},
      LowerRow{"aten::sum.dim_IntList", lower<accumulated<R::kSum, kDimensions>>},
      LowerRow{"aten::mean", lower<mean<kAll>>},
      LowerRow{"aten::mean.dim", lower<mean<kDimensions>>},
      LowerRow{"aten::prod", lower<accumulated<R::kProduct, kAll>>},
      LowerRow{"aten::prod.dim_int", lower<accumulated<R::kProduct, kDimensions>>},
      LowerRow{"aten::max", lower<extremum<R::kMaximum, kAll>>},
      LowerRow{"aten::min", lower<extremum<R::kMinimum, kAll>>},
      LowerRow{"aten::amax", lower<extremum<R::kMaximum, kDimensions>>},
      LowerRow{"aten::amin", lower<extremum<R::kMinimum, kDimensions>>},
      LowerRow{"aten::argmax", lower<extremum<R::kArgMaximum, kDimensions>>},
      LowerRow{"aten::argmin", lower<extremum<R::kArgMinimum, kDimensions>>},
      LowerRow{"aten::max.dim", lower<extremum_and_place<R::kMaximum, R::kArgMaximum>>},
      LowerRow{"aten::min.dim", lower<extremum_and_place<R::kMinimum, R::kArgMinimum>>},
      LowerRow{"aten::any", lower<truth<R::kAny, kAll>>},
      LowerRow{"aten::all", lower<truth<R::kAll, kAll>>},
      LowerRow{"aten::any.dim", lower<truth<R::kAny, kDimensions>>},
      LowerRow{"aten::all.dim", lower<truth<R::kAll, kDimensions>>},
      LowerRow{"aten::var.correction", lower<spread<Spread::kVariance>>},
      LowerRow{"aten::std.correction", lower<spread<Spread::kDeviation>>},
      LowerRow{"aten::var_mean.correction", lower<spread<Spread::kVarianceAndMean>>},
      LowerRow{"aten::linalg_vector_norm", lower<vector_norm>},
      LowerRow{"aten::logsumexp", lower<logsumexp>},
      LowerRow{"aten::_softmax", lower<softmax>},
      LowerRow{"aten::_log_softmax", lower<log_softmax>},
      LowerRow{"aten::_softmax_backward_data", lower<softmax_backward>},
      LowerRow{"aten::_log_softmax_backward_data", lower<log_softmax_backward>},
      LowerRow{"aten::native_layer_norm", lower<layer_norm>},
  };
  return kRows;
}

}  // namespace hetero::ops
