// Lowerings give the numbers of eager CPU.
//
// The nodes of these tests are recorded and run as always, but the kernel of each operator that can be lowered is
// replaced by a plain interpreter of its lowering, which evaluates the program value by value on dense arrays, in
// blocks of an odd length: a function whose results depend on where an entry stands, or on how many there are, would
// be noticed.
//
// Maps are compared bitwise, where all NaNs count as equal (PyTorch's vector code and its scalar code give different
// ones). PyTorch computes the last entries of a tensor (those that do not fill two vectors) by scalar code, which
// rounds differently for some operators: exact() takes tensors that only have whole vectors, exact_everywhere() also
// sizes from 1 to 100.
//
// What is not exact is near(): its bounds are about twice the largest error that was measured.

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/all.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/any.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/div.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/fmod.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/le.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/max.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/min.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/std.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/trunc.h>
#include <ATen/ops/var.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>

#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/fixture.h"
#include "tests/ops/lower_interpreter.h"
#include "tests/ops/lower_values.h"

namespace hetero::ops::testing {
namespace {

using DTypes = std::vector<at::ScalarType>;

const DTypes kFloats = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
const DTypes kWideFloats = {at::kFloat, at::kDouble};
const DTypes kHalves = {at::kHalf, at::kBFloat16};
const DTypes kIntegers = {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong};
const DTypes kBools = {at::kBool};
DTypes operator+(DTypes a, const DTypes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

using Call = std::function<at::Tensor(Tensors&)>;

class Lower : public OpsTest {
 public:
  void SetUp() override {
    OpsTest::SetUp();
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
    replace_kernels();
  }
  void TearDown() override {
    flush_all(SyncReason::kFlush);
    restore_kernels();
    at::set_num_threads(threads_);
    OpsTest::TearDown();
  }

  // Equal in tensors of whole vectors.
  void exact(const char* name, const DTypes& dtypes, const Call& call) {
    for (const at::ScalarType dtype : dtypes) expect_exact(name, dtype, call, operands_of(dtype, kMany));
  }
  // Equal for every size.
  void exact_everywhere(const char* name, const DTypes& dtypes, const Call& call) {
    exact(name, dtypes, call);
    for (const at::ScalarType dtype : dtypes) {
      for (int64_t n = 1; n <= 100; n += 9) expect_exact(name, dtype, call, operands_of(dtype, n));
    }
  }
  // Equal for these operands.
  void expect_exact(const char* name, at::ScalarType dtype, const Call& call, const Tensors& operands) {
    at::Tensor actual, expected;
    if (!run(name, dtype, call, operands, actual, expected)) return;
    const Difference difference = difference_of(actual, expected);
    if (difference.count == 0) return;
    ADD_FAILURE() << name << " of " << dtype << "[" << operands[0].numel() << "]: " << difference.count
                  << " entries differ, up to " << difference.largest << " roundings; entry " << difference.first
                  << " is " << entry(actual, difference.first) << " instead of " << entry(expected, difference.first)
                  << ", operands " << entry(operands[0], difference.first) << ", "
                  << (operands.size() > 1 ? entry(operands[1], difference.first) : at::Scalar(0));
  }
  // At most `bound` roundings apart: of the expected number, or of 1 where that is greater.
  void near(const char* name, const DTypes& dtypes, double bound, const Call& call, const Tensors& given) {
    for (const at::ScalarType dtype : dtypes) {
      Tensors operands;
      for (const at::Tensor& operand : given) operands.push_back(operand.to(dtype));
      at::Tensor actual, expected;
      if (!run(name, dtype, call, operands, actual, expected)) continue;
      const Difference difference = difference_of(actual, expected, false);
      // What the table in the report and the bounds here are made of.
      if (std::getenv("HETERO_PRINT_ERRORS") != nullptr) {
        std::printf("ERROR %s, %s: %.2f\n", name, c10::toString(dtype), difference.largest);
      }
      EXPECT_LE(difference.largest, bound)
          << name << " of " << dtype << ": " << difference.count << " of " << actual.numel()
          << " entries differ, first " << difference.first << ": " << entry(actual, difference.first) << " instead of "
          << entry(expected, difference.first);
    }
  }

  static constexpr int64_t kMany = 128 * 160;

 private:
  static at::Scalar entry(const at::Tensor& tensor, int64_t i) {
    return i < 0 ? at::Scalar(0) : tensor.contiguous().view(-1)[i].item();
  }

  static std::string fallback_names() {
    std::string names;
    for (const auto& [name, count] : counters().fallbacks.all()) names += name + " ";
    return names;
  }

  // False where it failed already.
  bool run(const char* name, at::ScalarType dtype, const Call& call, const Tensors& operands, at::Tensor& actual,
           at::Tensor& expected) {
    Tensors on_cpu, on_hetero;
    for (const at::Tensor& operand : operands) {
      on_cpu.push_back(operand.clone());
      on_hetero.push_back(on_device(operand));
    }
    expected = call(on_cpu);
    config().fusion = false;  // each node by its own kernel, which is replaced
    // The first call may enter the operator into the op table.
    Tensors first;
    for (const at::Tensor& operand : operands) first.push_back(on_device(operand));
    call(first).cpu();
    replace_kernels();
    lowered_calls.clear();
    refused_calls.clear();
    actual = call(on_hetero).cpu();
    EXPECT_FALSE(lowered_calls.empty() && refused_calls.empty())
        << name << " of " << dtype << " was not recorded: " << fallback_names();
    EXPECT_TRUE(refused_calls.empty()) << refused_calls.begin()->first << " of " << dtype << " was refused for "
                                       << name;
    EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << name << " of " << dtype;
    EXPECT_EQ(actual.sizes(), expected.sizes()) << name << " of " << dtype;
    return !lowered_calls.empty() && refused_calls.empty() && actual.scalar_type() == expected.scalar_type() &&
           actual.sizes() == expected.sizes();
  }

  int threads_ = 1;
};

// What Python registers otherwise.
at::Tensor like(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }
at::Tensor truth_like(const at::Tensor& x) { return at::empty(x.sizes(), x.options().dtype(at::kBool)); }
at::Tensor all_of(const at::Tensor& x) { return at::empty({}, x.options()); }
at::Tensor broadcast(const at::Tensor& x, const at::Tensor& y) {
  return at::empty(at::infer_size(x.sizes(), y.sizes()), x.options().dtype(at::result_type(x, y)));
}
at::Tensor truth_of(const at::Tensor& x, const at::Tensor& y) {
  return at::empty(at::infer_size(x.sizes(), y.sizes()), x.options().dtype(at::kBool));
}
at::Tensor chosen(const at::Tensor&, const at::Tensor& x, const at::Tensor& y) { return broadcast(x, y); }
at::Tensor bounded(const at::Tensor& x, const at::Scalar&, const at::Scalar&) { return like(x); }
at::Tensor bounded_backward(const at::Tensor& x, const at::Tensor&, const at::Scalar&, const at::Scalar&) {
  return like(x);
}
at::Tensor spread(const at::Tensor& x, at::OptionalIntArrayRef, const std::optional<at::Scalar>&, bool) {
  return at::empty(x.sizes().slice(0, x.dim() - 1), x.options());
}
std::tuple<at::Tensor, at::Tensor> two_spreads(const at::Tensor& x, at::OptionalIntArrayRef dim,
                                               const std::optional<at::Scalar>& correction, bool keepdim) {
  return {spread(x, dim, correction, keepdim), spread(x, dim, correction, keepdim)};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(const at::Tensor& x, at::IntArrayRef shape,
                                                                 const std::optional<at::Tensor>&,
                                                                 const std::optional<at::Tensor>&, double) {
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t i = 0; i < shape.size(); ++i) sizes[sizes.size() - 1 - i] = 1;
  const at::Tensor row = at::empty(sizes, x.options());
  return {like(x), row, like(row)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("abs", &like);
  m.impl("logical_not", &truth_like);
  m.impl("logical_and", &truth_of);
  m.impl("logical_or", &truth_of);
  m.impl("hardtanh", &bounded);
  m.impl("hardtanh_backward", &bounded_backward);
  m.impl("floor_divide", &broadcast);
  m.impl("where.self", &chosen);
  m.impl("var.correction", &spread);
  m.impl("std.correction", &spread);
  m.impl("var_mean.correction", &two_spreads);
  m.impl("max", &all_of);
  m.impl("min", &all_of);
  m.impl("native_layer_norm", &native_layer_norm);
}

// ---- one operand -------------------------------------------------------------------------------------------------------

TEST_F(Lower, UnaryArithmetic) {
  exact_everywhere("neg", kFloats + kIntegers, [](Tensors& t) { return at::neg(t[0]); });
  exact_everywhere("abs", kFloats + kIntegers, [](Tensors& t) { return at::abs(t[0]); });
  exact_everywhere("sign", kFloats + kIntegers + kBools, [](Tensors& t) { return at::sign(t[0]); });
  exact_everywhere("floor", kFloats + kIntegers, [](Tensors& t) { return at::floor(t[0]); });
  exact_everywhere("ceil", kFloats + kIntegers, [](Tensors& t) { return at::ceil(t[0]); });
  exact_everywhere("round", kFloats + kIntegers, [](Tensors& t) { return at::round(t[0]); });
  exact_everywhere("trunc", kFloats + kIntegers, [](Tensors& t) { return at::trunc(t[0]); });
  exact_everywhere("sqrt", kBools, [](Tensors& t) { return at::sqrt(t[0]); });
  exact_everywhere("rsqrt", kWideFloats + kIntegers, [](Tensors& t) { return at::rsqrt(t[0]); });
  exact("rsqrt of halves", kHalves, [](Tensors& t) { return at::rsqrt(t[0]); });
  exact_everywhere("reciprocal", kFloats + kIntegers, [](Tensors& t) { return at::reciprocal(t[0]); });
  exact_everywhere("relu", kFloats + kIntegers, [](Tensors& t) { return at::relu(t[0]); });
  exact_everywhere("bitwise_not", kIntegers + kBools, [](Tensors& t) { return at::bitwise_not(t[0]); });
  exact_everywhere("logical_not", kFloats + kIntegers + kBools, [](Tensors& t) { return at::logical_not(t[0]); });
}

TEST_F(Lower, Transcendentals) {
  const DTypes all = kFloats + DTypes{at::kLong, at::kByte};
  exact_everywhere("exp", all, [](Tensors& t) { return at::exp(t[0]); });
  exact("exp2", all, [](Tensors& t) { return at::exp2(t[0]); });
  exact_everywhere("expm1", all, [](Tensors& t) { return at::expm1(t[0]); });
  exact_everywhere("log", all, [](Tensors& t) { return at::log(t[0]); });
  exact_everywhere("log1p", all, [](Tensors& t) { return at::log1p(t[0]); });
  exact_everywhere("log2", all, [](Tensors& t) { return at::log2(t[0]); });
  exact_everywhere("log10", all, [](Tensors& t) { return at::log10(t[0]); });
  exact_everywhere("sin", all, [](Tensors& t) { return at::sin(t[0]); });
  exact_everywhere("cos", all, [](Tensors& t) { return at::cos(t[0]); });
  exact_everywhere("tan", all, [](Tensors& t) { return at::tan(t[0]); });
  exact_everywhere("tanh", all, [](Tensors& t) { return at::tanh(t[0]); });
  exact_everywhere("erf", all, [](Tensors& t) { return at::erf(t[0]); });
  exact_everywhere("erfc", all, [](Tensors& t) { return at::erfc(t[0]); });
  exact("sigmoid", all, [](Tensors& t) { return at::sigmoid(t[0]); });
  exact("silu", kFloats, [](Tensors& t) { return at::silu(t[0]); });
}

TEST_F(Lower, Activations) {
  exact("gelu", {at::kDouble}, [](Tensors& t) { return at::gelu(t[0]); });
  exact("gelu tanh", kFloats, [](Tensors& t) { return at::gelu(t[0], "tanh"); });
  exact("gelu tanh backward", kFloats, [](Tensors& t) { return at::gelu_backward(t[0], t[1], "tanh"); });
  exact("hardtanh", kFloats, [](Tensors& t) { return at::hardtanh(t[0], -0.3, 0.7); });
  exact("leaky_relu", kFloats, [](Tensors& t) { return at::leaky_relu(t[0], 0.1); });
  exact("elu", kFloats, [](Tensors& t) { return at::elu(t[0], 1.1, 1.3, 0.7); });
  exact("softplus", kFloats, [](Tensors& t) { return at::softplus(t[0], 1.1, 5.3); });
  exact("threshold", kFloats + kIntegers, [](Tensors& t) { return at::threshold(t[0], 1, 7); });
  exact("threshold 0.1", kFloats, [](Tensors& t) { return at::threshold(t[0], 0.1, 0.3); });
  exact("threshold_backward", kFloats + kIntegers, [](Tensors& t) { return at::threshold_backward(t[0], t[1], 0); });
  exact("hardtanh_backward", kFloats, [](Tensors& t) { return at::hardtanh_backward(t[0], t[1], -0.1, 0.1); });
  exact("leaky_relu_backward", kFloats, [](Tensors& t) { return at::leaky_relu_backward(t[0], t[1], 0.1, false); });
  exact("sigmoid_backward", kFloats, [](Tensors& t) { return at::sigmoid_backward(t[0], t[1]); });
  exact("tanh_backward", kFloats, [](Tensors& t) { return at::tanh_backward(t[0], t[1]); });
  exact("silu_backward", kFloats, [](Tensors& t) { return at::silu_backward(t[0], t[1]); });
}

// ---- two operands --------------------------------------------------------------------------------------------------------

TEST_F(Lower, Arithmetic) {
  const DTypes all = kFloats + kIntegers;
  exact_everywhere("add", all + kBools, [](Tensors& t) { return at::add(t[0], t[1]); });
  exact("add alpha", all, [](Tensors& t) { return at::add(t[0], t[1], 3); });
  exact("add 0.3", kFloats, [](Tensors& t) { return at::add(t[0], t[1], 0.3); });
  exact_everywhere("sub", all, [](Tensors& t) { return at::sub(t[0], t[1]); });
  exact("sub 0.3", kFloats, [](Tensors& t) { return at::sub(t[0], t[1], 0.3); });
  exact_everywhere("mul", all + kBools, [](Tensors& t) { return at::mul(t[0], t[1]); });
  exact_everywhere("div", all + kBools, [](Tensors& t) { return at::div(t[0], t[1]); });
  exact_everywhere("add number", all + kBools, [](Tensors& t) { return at::add(t[0], 3); });
  exact_everywhere("add real", all + kBools, [](Tensors& t) { return at::add(t[0], 0.1); });
  exact_everywhere("sub number", all, [](Tensors& t) { return at::sub(t[0], 0.1); });
  exact_everywhere("rsub", all, [](Tensors& t) { return at::rsub(t[0], 3); });
  exact_everywhere("mul number", all, [](Tensors& t) { return at::mul(t[0], 0.1); });
  exact_everywhere("div number", all, [](Tensors& t) { return at::div(t[0], 0.3); });
  exact_everywhere("maximum", all + kBools, [](Tensors& t) { return at::maximum(t[0], t[1]); });
}

TEST_F(Lower, Divisions) {
  exact("div floor", kWideFloats, [](Tensors& t) { return at::div(t[0], t[1], "floor"); });
  exact("div trunc", kWideFloats, [](Tensors& t) { return at::div(t[0], t[1], "trunc"); });
  exact("div none", kFloats + kIntegers,
        [](Tensors& t) { return at::div(t[0], t[1], std::optional<c10::string_view>()); });
  exact("div floor number", kFloats, [](Tensors& t) { return at::div(t[0], 0.3, "floor"); });
  exact("div trunc number", kFloats, [](Tensors& t) { return at::div(t[0], 0.3, "trunc"); });
  exact("floor_divide", kWideFloats, [](Tensors& t) { return at::floor_divide(t[0], t[1]); });
  exact("fmod", kFloats, [](Tensors& t) { return at::fmod(t[0], t[1]); });
  exact("remainder", kFloats, [](Tensors& t) { return at::remainder(t[0], t[1]); });
  exact("atan2", kFloats, [](Tensors& t) { return at::atan2(t[0], t[1]); });
  exact("maximum", kFloats + kIntegers + kBools, [](Tensors& t) { return at::maximum(t[0], t[1]); });
  exact("minimum", kFloats + kIntegers + kBools, [](Tensors& t) { return at::minimum(t[0], t[1]); });
}

TEST_F(Lower, Powers) {
  for (const double exponent : {0.0, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0, 1.7}) {
    exact(("pow " + std::to_string(exponent)).c_str(), kFloats, [=](Tensors& t) { return at::pow(t[0], exponent); });
  }
  for (const int exponent : {0, 1, 2, 3, 7}) {
    exact(("pow " + std::to_string(exponent)).c_str(), kFloats + kIntegers,
          [=](Tensors& t) { return at::pow(t[0], exponent); });
  }
  exact("pow of a number", kFloats, [](Tensors& t) { return at::pow(1.3, t[0]); });
  exact("pow", kFloats, [](Tensors& t) { return at::pow(t[0], t[1]); });
  // Eager has other code for one entry than for whole vectors.
  for (const at::ScalarType dtype : kWideFloats) {
    for (int64_t i = 0; i < 50; ++i) {
      const double base = 0.9 + 0.002 * static_cast<double>(i);
      const Tensors given = {at::full({}, static_cast<double>(i + 1), dtype), at::full({1}, base, dtype)};
      expect_exact(
          "pow of a number by one", dtype, [=](Tensors& t) { return at::pow(base, t[0]); }, given);
      expect_exact(
          "pow of one by one", dtype, [](Tensors& t) { return at::pow(t[1], t[0]); }, given);
      expect_exact(
          "pow_ of one by one", dtype, [](Tensors& t) { return t[1].pow_(t[0]); }, given);
      const Tensors whole = {at::full({1, 1}, i - 25, at::kLong)};
      expect_exact(
          "pow of a number by one integer", at::kLong, [=](Tensors& t) { return at::pow(base, t[0]); }, whole);
    }
  }
}

TEST_F(Lower, Comparisons) {
  const DTypes all = kFloats + kIntegers + kBools;
  exact_everywhere("eq", all, [](Tensors& t) { return at::eq(t[0], t[1]); });
  exact_everywhere("ne", all, [](Tensors& t) { return at::ne(t[0], t[1]); });
  exact_everywhere("lt", all, [](Tensors& t) { return at::lt(t[0], t[1]); });
  exact_everywhere("le", all, [](Tensors& t) { return at::le(t[0], t[1]); });
  exact_everywhere("gt", all, [](Tensors& t) { return at::gt(t[0], t[1]); });
  exact_everywhere("ge", all, [](Tensors& t) { return at::ge(t[0], t[1]); });
  exact_everywhere("eq 1", all, [](Tensors& t) { return at::eq(t[0], 1); });
  exact_everywhere("ne 1", all, [](Tensors& t) { return at::ne(t[0], 1); });
  exact_everywhere("lt 0.1", all, [](Tensors& t) { return at::lt(t[0], 0.1); });
  exact_everywhere("le 0.1", all, [](Tensors& t) { return at::le(t[0], 0.1); });
  exact_everywhere("gt 0.1", all, [](Tensors& t) { return at::gt(t[0], 0.1); });
  exact_everywhere("ge 2", all, [](Tensors& t) { return at::ge(t[0], 2); });
  exact_everywhere("logical_and", all, [](Tensors& t) { return at::logical_and(t[0], t[1]); });
  exact_everywhere("logical_or", all, [](Tensors& t) { return at::logical_or(t[0], t[1]); });
  exact_everywhere("bitwise_and", kIntegers + kBools, [](Tensors& t) { return at::bitwise_and(t[0], t[1]); });
  exact_everywhere("bitwise_or", kIntegers + kBools, [](Tensors& t) { return at::bitwise_or(t[0], t[1]); });
  exact_everywhere("bitwise_xor", kIntegers + kBools, [](Tensors& t) { return at::bitwise_xor(t[0], t[1]); });
}

// ---- bounds, choices, three operands ---------------------------------------------------------------------------------------

TEST_F(Lower, Bounds) {
  const DTypes all = kFloats + kIntegers;
  exact("clamp", all, [](Tensors& t) { return at::clamp(t[0], 1, 5); });
  exact("clamp 0.1", all, [](Tensors& t) { return at::clamp(t[0], 0.1, 0.9); });
  exact("clamp below", all, [](Tensors& t) { return at::clamp(t[0], 1); });
  exact("clamp above", all, [](Tensors& t) { return at::clamp(t[0], std::nullopt, 1); });
  exact("clamp_min", all, [](Tensors& t) { return at::clamp_min(t[0], 0); });
  exact("clamp_max", all, [](Tensors& t) { return at::clamp_max(t[0], 0); });
  exact("clamp nan", kFloats, [](Tensors& t) { return at::clamp(t[0], NAN, 0.9); });
}

TEST_F(Lower, Choices) {
  const DTypes all = kFloats + kIntegers + kBools;
  exact_everywhere("where", all, [](Tensors& t) { return at::where(t[3], t[0], t[1]); });
  exact_everywhere("where scalar", kFloats, [](Tensors& t) { return at::where(t[3], t[0], 0.1); });
  exact_everywhere("masked_fill", all, [](Tensors& t) { return at::masked_fill(t[0], t[3], 1); });
  exact_everywhere("masked_fill -inf", kFloats, [](Tensors& t) { return at::masked_fill(t[0], t[3], -INFINITY); });
  exact_everywhere("masked_fill tensor", all,
                   [](Tensors& t) { return at::masked_fill(t[0], t[3], t[1].select(0, 0)); });
}

TEST_F(Lower, ThreeOperands) {
  exact("addcmul", kFloats + kIntegers, [](Tensors& t) { return at::addcmul(t[0], t[1], t[2], 2); });
  exact("addcmul 0.1", kFloats, [](Tensors& t) { return at::addcmul(t[0], t[1], t[2], 0.1); });
  exact("addcdiv", kFloats, [](Tensors& t) { return at::addcdiv(t[0], t[1], t[2], 0.1); });
  exact("lerp", kFloats, [](Tensors& t) { return at::lerp(t[0], t[1], 0.1); });
  exact("lerp 0.8", kFloats, [](Tensors& t) { return at::lerp(t[0], t[1], 0.8); });
  exact("lerp tensor", kFloats, [](Tensors& t) { return at::lerp(t[0], t[1], t[2]); });
}

// ---- dtypes
// --------------------------------------------------------------------------------------------------------------------

TEST_F(Lower, Casts) {
  for (const at::ScalarType to : kFloats + kIntegers + kBools) {
    for (const at::ScalarType from : kFloats + kIntegers + kBools) {
      if (from == to) continue;
      exact_everywhere((std::string("to ") + c10::toString(to)).c_str(), {from},
                       [=](Tensors& t) { return at::_to_copy(t[0], to); });
      exact((std::string("copy_ to ") + c10::toString(to)).c_str(), {from}, [=](Tensors& t) {
        at::Tensor result = at::empty(t[0].sizes(), t[0].options().dtype(to));
        return result.copy_(t[0]);
      });
    }
  }
  exact_everywhere("clone", kFloats + kIntegers + kBools, [](Tensors& t) { return at::clone(t[0]); });
}

TEST_F(Lower, Promotion) {
  const auto pairs = [&](const char* name, const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& call,
                         const DTypes& dtypes) {
    for (const at::ScalarType other : dtypes) {
      exact(name, dtypes, [=](Tensors& t) { return call(t[0], t[1].to(other)); });
      exact(name, dtypes, [=](Tensors& t) { return call(t[0], t[1].select(0, 7).to(other)); });
      exact(name, dtypes, [=](Tensors& t) { return call(t[1].select(0, 7).to(other), t[0]); });
      // A captured tensor of the CPU.
      exact(name, dtypes, [=](Tensors& t) {
        return call(t[0], at::scalar_tensor(other == at::kBool ? 1 : 3.3, at::TensorOptions(other)));
      });
    }
  };
  const DTypes some = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte, at::kInt, at::kBool};
  pairs(
      "add", [](const auto& a, const auto& b) { return at::add(a, b); }, some);
  pairs(
      "lt", [](const auto& a, const auto& b) { return at::lt(a, b); }, some);
  pairs("mul", [](const auto& a, const auto& b) { return at::mul(a, b); },
        {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte, at::kBool});
  pairs("div", [](const auto& a, const auto& b) { return at::div(a, b); },
        {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte});
}

TEST_F(Lower, Broadcasting) {
  exact("add", kFloats, [](Tensors& t) {
    return at::add(t[0].view({64, -1}), t[1].slice(0, 0, 64).view({64, 1})).mul(t[2].slice(0, 0, t[0].numel() / 64));
  });
}

// ---- in place ----------------------------------------------------------------------------------------------------------------

TEST_F(Lower, InPlace) {
  const DTypes all = kFloats + kIntegers;
  exact("add_", all, [](Tensors& t) { return t[0].add_(t[1]); });
  exact("add_ number", all, [](Tensors& t) { return t[0].add_(2); });
  exact("sub_", all, [](Tensors& t) { return t[0].sub_(t[1], 2); });
  exact("mul_", all, [](Tensors& t) { return t[0].mul_(t[1]); });
  exact("div_", kFloats, [](Tensors& t) { return t[0].div_(t[1]); });
  exact("mul_ of another dtype", {at::kHalf, at::kFloat},
        [](Tensors& t) { return t[0].mul_(t[1].to(t[0].scalar_type() == at::kHalf ? at::kFloat : at::kDouble)); });
  exact("addcmul_", kFloats, [](Tensors& t) { return t[0].addcmul_(t[1], t[2], 0.1); });
  exact("addcdiv_", kFloats, [](Tensors& t) { return t[0].addcdiv_(t[1], t[2], -0.1); });
  exact("lerp_", kFloats, [](Tensors& t) { return t[0].lerp_(t[1], 0.1); });
  exact("exp_", kFloats, [](Tensors& t) { return t[0].exp_(); });
  exact("clamp_", all, [](Tensors& t) { return t[0].clamp_(1, 3); });
  exact("masked_fill_", all, [](Tensors& t) { return t[0].masked_fill_(t[3], 2); });
  exact("fill_", all + kBools, [](Tensors& t) { return t[0].fill_(1.5); });
  exact("fill_ tensor", all, [](Tensors& t) { return t[0].fill_(t[1].select(0, 0)); });
  exact("zero_", all + kBools, [](Tensors& t) { return t[0].zero_(); });
  exact("pow_", kFloats, [](Tensors& t) { return t[0].pow_(2); });
}

// ---- what is not exact
// -----------------------------------------------------------------------------------------------------------

// PyTorch takes gelu of float32 and the half dtypes from oneDNN, with another polynomial for erf. Infinities, and
// numbers near the largest, it turns into NaNs or infinities; a lowered gelu does not. The gradient of float64 is
// PyTorch's own, but 7% of the entries differ in the last bit.
TEST_F(Lower, GeluIsNear) {
  const Tensors given = {numbers({kMany}, 1).mul(3), numbers({kMany}, 2).mul(3)};
  near(
      "gelu", {at::kFloat}, 20, [](Tensors& t) { return at::gelu(t[0]); }, given);
  near(
      "gelu", kHalves, 1, [](Tensors& t) { return at::gelu(t[0]); }, given);
  near(
      "gelu backward", kWideFloats, 10, [](Tensors& t) { return at::gelu_backward(t[0], t[1]); }, given);
  near(
      "gelu backward", kHalves, 1, [](Tensors& t) { return at::gelu_backward(t[0], t[1]); }, given);
}

// MKL's are not always the nearest ones; a lowered root is.
TEST_F(Lower, RootsAreTheNearest) {
  const Tensors given = {numbers({kMany}, 1).mul(50).abs()};
  near(
      "sqrt", kFloats + kIntegers, 1, [](Tensors& t) { return at::sqrt(t[0]); }, given);
  near(
      "sqrt_", kFloats, 1, [](Tensors& t) { return t[0].sqrt_(); }, given);
  near(
      "pow 0.5", kFloats, 1, [](Tensors& t) { return at::pow(t[0], 0.5); }, given);
  const at::Tensor truth = at::sqrt(given[0].to(at::kDouble)).to(at::kFloat);
  const at::Tensor there = at::sqrt(on_device(given[0]));
  EXPECT_TRUE(at::equal(there.cpu(), truth));
}

TEST_F(Lower, ExtremaAreExact) {
  const DTypes all = kFloats + kIntegers;
  const auto rows = [](Tensors& t) { return t[0].view({-1, 160}); };
  exact("amax", all + kBools, [=](Tensors& t) { return at::amax(rows(t), {1}); });
  exact("amin", all + kBools, [=](Tensors& t) { return at::amin(rows(t), {-1}, true); });
  exact("amax of columns", all, [=](Tensors& t) { return at::amax(rows(t), {0}); });
  exact("max", all + kBools, [=](Tensors& t) { return at::max(t[0]); });
  exact("min", all + kBools, [=](Tensors& t) { return at::min(rows(t)); });
  exact("argmax", all, [=](Tensors& t) { return at::argmax(rows(t), 1); });
  exact("argmax everywhere", all, [=](Tensors& t) { return at::argmax(rows(t)); });
  exact("argmin", all, [=](Tensors& t) { return at::argmin(rows(t), -1, true); });
  exact("max dim", all, [=](Tensors& t) { return std::get<0>(at::max(rows(t), 1)); });
  exact("max dim place", all, [=](Tensors& t) { return std::get<1>(at::max(rows(t), 1)); });
  exact("min dim place", all, [=](Tensors& t) { return std::get<1>(at::min(rows(t), 1, true)); });
  exact("any", all + kBools, [=](Tensors& t) { return at::any(rows(t), 1); });
  exact("all", all + kBools, [=](Tensors& t) { return at::all(rows(t), 1); });
  exact("any of all", all + kBools, [=](Tensors& t) { return at::any(t[0]); });
  exact("all of all", all + kBools, [=](Tensors& t) { return at::all(t[0]); });
  exact("sum of integers", kIntegers + kBools, [=](Tensors& t) { return at::sum(rows(t), {1}); });
  exact("sum of all integers", kIntegers + kBools, [=](Tensors& t) { return at::sum(t[0]); });
  exact("prod of integers", kIntegers + kBools, [=](Tensors& t) { return at::prod(rows(t), 1); });
}

class LowerRows : public Lower {
 public:
  // Numbers of ordinary size, in rows. `bound` is for float32 and float64, `half_bound` for the half dtypes.
  void rows(const char* name, double bound, double half_bound, const Call& call) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{40, 7}, {20, 333}, {3, 5, 4097}}) {
      const Tensors given = {numbers(sizes, 1), numbers(sizes, 2), numbers({sizes.back()}, 3),
                             numbers({sizes.back()}, 4)};
      near(name, kWideFloats, bound, call, given);
      near(name, kHalves, half_bound, call, given);
    }
  }
};

TEST_F(LowerRows, SumsAreNear) {
  rows("sum", 4, 1, [](Tensors& t) { return at::sum(t[0].abs(), {-1}); });
  rows("sum of all", 2, 1, [](Tensors& t) { return at::sum(t[0].abs()); });
  rows("sum of columns", 4, 1, [](Tensors& t) { return at::sum(t[0].abs(), {0}); });
  rows("mean", 4, 1, [](Tensors& t) { return at::mean(t[0].abs(), {-1}); });
  rows("mean of all", 2, 1, [](Tensors& t) { return at::mean(t[0].abs()); });
  rows("prod", 80, 120, [](Tensors& t) { return at::prod(at::exp(t[0].mul(0.17)), -1); });
  rows("var", 50, 1, [](Tensors& t) { return at::var(t[0], {-1}, at::Scalar(1)); });
  rows("std", 25, 1, [](Tensors& t) { return at::std(t[0], {-1}, at::Scalar(0)); });
  rows("var_mean", 50, 1, [](Tensors& t) { return std::get<0>(at::var_mean(t[0], {-1}, at::Scalar(1))); });
  rows("norm 2", 8, 1, [](Tensors& t) { return at::linalg_vector_norm(t[0], 2, {{-1}}); });
  rows("norm 1", 32, 1, [](Tensors& t) { return at::linalg_vector_norm(t[0], 1, {{-1}}); });
  rows("norm 3", 16, 1, [](Tensors& t) { return at::linalg_vector_norm(t[0], 3, {{-1}}); });
  rows("norm inf", 0, 0, [](Tensors& t) { return at::linalg_vector_norm(t[0], INFINITY, {{-1}}); });
  rows("norm -inf", 0, 0, [](Tensors& t) { return at::linalg_vector_norm(t[0], -INFINITY, {{-1}}); });
  rows("norm 0", 0, 0, [](Tensors& t) { return at::linalg_vector_norm(t[0], 0, {{-1}}); });
  rows("logsumexp", 3, 2, [](Tensors& t) { return at::logsumexp(t[0], {-1}); });
}

TEST_F(LowerRows, SoftmaxAndNormalizationAreNear) {
  rows("softmax", 2, 1, [](Tensors& t) { return at::_softmax(t[0], -1, false); });
  rows("log_softmax", 3, 2, [](Tensors& t) { return at::_log_softmax(t[0], -1, false); });
  rows("softmax backward", 500, 2,
       [](Tensors& t) { return at::_softmax_backward_data(t[0], t[1].abs(), -1, t[0].scalar_type()); });
  rows("log_softmax backward", 500, 2,
       [](Tensors& t) { return at::_log_softmax_backward_data(t[0], t[1], -1, t[0].scalar_type()); });
  rows("layer_norm", 10, 1,
       [](Tensors& t) { return std::get<0>(at::native_layer_norm(t[0], {t[0].size(-1)}, t[2], t[3], 1e-5)); });
  rows("layer_norm mean", 2, 2,
       [](Tensors& t) { return std::get<1>(at::native_layer_norm(t[0], {t[0].size(-1)}, {}, {}, 1e-5)); });
  rows("layer_norm deviation", 2, 1,
       [](Tensors& t) { return std::get<2>(at::native_layer_norm(t[0], {t[0].size(-1)}, t[2], {}, 1e-5)); });
}

TEST_F(LowerRows, NegativeLogLikelihoodIsNear) {
  const auto matrix = [](const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); };
  // One class is ignored where it comes up.
  const auto classes = [=](Tensors& t) { return at::argmax(matrix(t[1]), -1); };
  const auto loss = [=](Tensors& t, int64_t reduction, const std::optional<at::Tensor>& weight) {
    return at::nll_loss_forward(matrix(t[0]), classes(t), weight, reduction, 3);
  };
  const auto gradient = [=](Tensors& t, int64_t reduction, const std::optional<at::Tensor>& weight) {
    const at::Tensor grad = reduction == at::Reduction::None ? matrix(t[1]).select(1, 0) : t[3].select(0, 0);
    return at::nll_loss_backward(grad, matrix(t[0]), classes(t), weight, reduction, 3, t[2].select(0, 0));
  };
  const std::pair<const char*, int64_t> reductions[] = {
      {"none", at::Reduction::None}, {"mean", at::Reduction::Mean}, {"sum", at::Reduction::Sum}};
  for (const auto& [reduction_name, reduction] : reductions) {
    for (const bool weighted : {false, true}) {
      const std::string name = std::string("nll_loss ") + reduction_name + (weighted ? ", weighted" : "");
      const auto weight = [=](Tensors& t) { return weighted ? std::optional(t[2]) : std::nullopt; };
      const bool sums = reduction != at::Reduction::None;
      // Eager adds half dtypes up in the half dtype.
      rows(name.c_str(), sums ? 8 : 0, sums ? 20 : 1,
           [=](Tensors& t) { return std::get<0>(loss(t, reduction, weight(t))); });
      rows((name + ", total weight").c_str(), sums ? 8 : 0, sums ? 20 : 0,
           [=](Tensors& t) { return std::get<1>(loss(t, reduction, weight(t))); });
      rows((name + ", backward").c_str(), 1, 2, [=](Tensors& t) { return gradient(t, reduction, weight(t)); });
    }
  }
}

}  // namespace hetero::ops::testing
