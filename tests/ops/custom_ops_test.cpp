// Operators that users register: with a Meta kernel they are recorded, without one they run at once
// and are counted.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <torch/library.h>

#include "ops/run/sync.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

at::Tensor like(const at::Tensor& x) { return at::empty_like(x); }

at::Tensor scale(const at::Tensor& x, double by) { return at::mul(x, by); }
at::Tensor scale_meta(const at::Tensor& x, double) { return like(x); }

Tensors rows(const at::Tensor& x) {
  Tensors result;
  for (int64_t i = 0; i < x.size(0); ++i) result.push_back(x.select(0, i).clone());
  return result;
}

void bump(at::Tensor& x, int64_t by) { x.add_(by); }
void bump_meta(at::Tensor&, int64_t) {}

at::Tensor& bump_self(at::Tensor& x) { return x.add_(1); }

at::Tensor first_row(const at::Tensor& x) { return x.select(0, 0); }

at::Tensor shorter(const at::Tensor& x) { return x.slice(0, 1).clone(); }

at::Tensor composite(const at::Tensor& x) { return at::add(at::relu(x), 1); }

int64_t positives(const at::Tensor& x) { return x.gt(0).sum().item<int64_t>(); }

at::Tensor ours(const at::Tensor& x) { return at::add(x, 100); }

// Uses every kind of argument that a schema can name.
at::Tensor everything(const at::Tensor& x, const std::optional<at::Tensor>& y, const std::vector<at::Tensor>& list,
                      at::IntArrayRef ints, at::ArrayRef<double> reals, const at::Scalar& number, c10::string_view mode,
                      bool flag, std::optional<int64_t> n, std::optional<double> absent, at::ScalarType dtype) {
  TORCH_CHECK(mode == "mode" && flag && n == 3 && !absent.has_value() && dtype == at::kHalf);
  at::Tensor result = at::mul(x, number);
  if (y.has_value()) result.add_(*y);
  for (const at::Tensor& tensor : list) result.add_(tensor);
  for (const int64_t i : ints) result.mul_(i);
  for (const double r : reals) result.sub_(r);
  return result;
}
at::Tensor everything_meta(const at::Tensor& x, const std::optional<at::Tensor>&, const std::vector<at::Tensor>&,
                           at::IntArrayRef, at::ArrayRef<double>, const at::Scalar&, c10::string_view, bool,
                           std::optional<int64_t>, std::optional<double>, at::ScalarType) {
  return like(x);
}

TORCH_LIBRARY(hetero_tests, m) {
  m.def("scale(Tensor x, float by) -> Tensor");
  m.def("scale_no_meta(Tensor x, float by) -> Tensor");
  m.def("rows(Tensor x) -> Tensor[]");
  m.def("bump(Tensor(a!) x, int by) -> ()");
  m.def("bump_no_meta(Tensor(a!) x) -> Tensor(a!)");
  m.def("first_row(Tensor(a) x) -> Tensor(a)");
  m.def("wrong_meta(Tensor x) -> Tensor");
  m.def("composite(Tensor x) -> Tensor", &composite);
  m.def("positives(Tensor x) -> int");
  m.def("ours(Tensor x) -> Tensor");
  m.def(
      "everything(Tensor x, Tensor? y, Tensor[] list, int[] ints, float[] reals, Scalar number, "
      "str mode, bool flag, "
      "int? n, float? absent, ScalarType dtype) -> Tensor");
}

TORCH_LIBRARY_IMPL(hetero_tests, CPU, m) {
  m.impl("scale", &scale);
  m.impl("scale_no_meta", &scale);
  m.impl("rows", &rows);
  m.impl("bump", &bump);
  m.impl("bump_no_meta", &bump_self);
  m.impl("first_row", &first_row);
  m.impl("wrong_meta", &shorter);
  m.impl("positives", &positives);
  m.impl("everything", &everything);
}

TORCH_LIBRARY_IMPL(hetero_tests, Meta, m) {
  m.impl("scale", &scale_meta);
  m.impl("rows", &rows);
  m.impl("bump", &bump_meta);
  m.impl("first_row", &first_row);
  m.impl("wrong_meta", &like);
  m.impl("everything", &everything_meta);
}

TORCH_LIBRARY_IMPL(hetero_tests, PrivateUse1, m) { m.impl("ours", &ours); }

template <typename Signature, typename... T>
decltype(auto) call(const char* name, T&&... arguments) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("hetero_tests::") + name).c_str(), "")
      .typed<Signature>()
      .call(std::forward<T>(arguments)...);
}

class CustomOps : public OpsTest {
 public:
  const at::Tensor x = numbers({3, 4});
};

TEST_F(CustomOps, WithAMetaKernelItIsRecorded) {
  const auto scaled = [](Tensors& t) {
    return call<at::Tensor(const at::Tensor&, double)>("scale", at::relu(t[0]), 2.5);
  };
  EXPECT_EQ(path_of(scaled, {x}), (Counts{.typed = 1, .boxed = 1, .hits = 2}));
}

TEST_F(CustomOps, WithoutAMetaKernelItRunsAfterAFlushAndIsCounted) {
  const auto scaled = [](Tensors& t) {
    return call<at::Tensor(const at::Tensor&, double)>("scale_no_meta", at::relu(t[0]), 2.5);
  };
  EXPECT_EQ(path_of(scaled, {x}), (Counts{.typed = 1,
                                          .straight = 1,
                                          .hits = 2,
                                          .kernels = 1,
                                          .flushes = {{SyncReason::kNoMetaKernel, 1}},
                                          .fallbacks = {{"hetero_tests::scale_no_meta", 1}}}));
}

TEST_F(CustomOps, EveryKindOfArgumentArrivesAtTheKernel) {
  const auto all = [](Tensors& t) {
    using Signature = at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, const std::vector<at::Tensor>&,
                                 at::IntArrayRef, at::ArrayRef<double>, const at::Scalar&, c10::string_view, bool,
                                 std::optional<int64_t>, std::optional<double>, at::ScalarType);
    const int64_t ints[] = {2, -3};
    const double reals[] = {0.5, 0.25};
    const auto with = [&](const std::optional<at::Tensor>& y) {
      return call<Signature>("everything", t[0], y, Tensors{t[1], t[0]}, ints, reals, 1.5, "mode", true, 3,
                             std::nullopt, at::kHalf);
    };
    return Tensors{with(t[1]), with(std::nullopt)};
  };
  EXPECT_EQ(path_of(all, {x, numbers({3, 4}, 2)}), (Counts{.boxed = 2, .hits = 2}));
}

TEST_F(CustomOps, AListOfResultsIsRecordedAsOneNode) {
  const auto split = [](Tensors& t) { return call<Tensors(const at::Tensor&)>("rows", t[0]); };
  EXPECT_EQ(path_of(split, {x}), (Counts{.boxed = 1, .hits = 1}));
}

TEST_F(CustomOps, AMutatedArgumentIsWrittenInProgramOrder) {
  const auto bumped = [](Tensors& t) {
    const at::Tensor before = at::add(t[0], 0);
    at::Tensor row = t[0].select(0, 1);
    call<void(at::Tensor&, int64_t)>("bump", row, 5);
    return Tensors{before, at::add(t[0], 0)};
  };
  EXPECT_EQ(path_of(bumped, {x}), (Counts{.typed = 2, .boxed = 1, .views = 1, .hits = 3}));
}

TEST_F(CustomOps, AMutatedArgumentWithoutMetaKernelIsReturnedAsItself) {
  at::Tensor target = on_device(x);
  const at::Tensor reader = at::add(target, 0);
  at::Tensor row = target.select(0, 1);
  at::Tensor& returned = call<at::Tensor&(at::Tensor&)>("bump_no_meta", row);
  EXPECT_TRUE(returned.is_same(row));
  at::Tensor expected = x.clone();
  expected.select(0, 1).add_(1);
  expect_same({target, reader}, {expected, x});
}

TEST_F(CustomOps, AViewOfAnArgumentSharesItsStorage) {
  const auto zeroed = [](Tensors& t) {
    at::Tensor row = call<at::Tensor(const at::Tensor&)>("first_row", at::add(t[0], 1));
    return row.mul_(0);
  };
  EXPECT_EQ(path_of(zeroed, {x}), (Counts{.typed = 2, .views = 1, .hits = 2}));
  const at::Tensor a = on_device(x);
  EXPECT_EQ(storage_of(call<at::Tensor(const at::Tensor&)>("first_row", a)), storage_of(a));
}

TEST_F(CustomOps, ACompositeOneIsRecordedByItsParts) {
  const auto parts = [](Tensors& t) { return call<at::Tensor(const at::Tensor&)>("composite", t[0]); };
  EXPECT_EQ(path_of(parts, {x}), (Counts{.typed = 2, .hits = 2}));
}

TEST_F(CustomOps, AnAnswerThatIsNoTensorIsControlFlow) {
  const at::Tensor a = on_device(x);
  at::relu(a);
  mark();
  EXPECT_EQ(call<int64_t(const at::Tensor&)>("positives", at::relu(a)), positives(x));
  EXPECT_EQ(seen().flushes, (std::map<SyncReason, int64_t>{{SyncReason::kDataDependentValue, 1}}));
  EXPECT_EQ(seen().fallbacks, (std::map<std::string, int64_t>{{"hetero_tests::positives", 1}}));
}

TEST_F(CustomOps, AKernelForTheDeviceGoesBeforeTheCatchAll) {
  const at::Tensor a = on_device(x);
  at::add(a, 1);
  mark();
  const at::Tensor result = call<at::Tensor(const at::Tensor&)>("ours", a);
  EXPECT_EQ(seen(), (Counts{.typed = 1, .hits = 1}));
  expect_same(result, at::add(x, 100));
}

TEST_F(CustomOps, AMetaKernelThatPredictsAnotherShapeIsToldSo) {
  const at::Tensor wrong = call<at::Tensor(const at::Tensor&)>("wrong_meta", on_device(x));
  const std::string message = error_of([&] { wrong.cpu(); });
  EXPECT_NE(message.find("hetero_tests::wrong_meta predicts"), std::string::npos) << message;
  EXPECT_NE(message.find("correct the Meta (fake) kernel"), std::string::npos) << message;
}

}  // namespace
}  // namespace hetero::ops::testing
