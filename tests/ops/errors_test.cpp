// Wrong calls: the error is the CPU's, it comes as early as on the CPU where it can, and what is
// right goes on.

#include <ATen/ops/add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scalar_tensor.h>

#include "ops/run/sync.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

class Errors : public OpsTest {
 public:
  // The next operation works, and so does what was pending before.
  void TearDown() override {
    expect_same({at::add(a, 1), before}, {at::add(x, 1), at::mul(x, 2)});
    OpsTest::TearDown();
  }

  // The message on the CPU, which must be the one on the device.
  template <typename Call>
  static std::string same_error(const Call& call, const Tensors& arguments) {
    Tensors host = arguments, device;
    for (const at::Tensor& argument : arguments) device.push_back(on_device(argument));
    const std::string expected = error_of([&] { call(host); });
    EXPECT_NE(expected, "");
    EXPECT_EQ(error_of([&] { call(device); }), expected);
    return expected;
  }

  const at::Tensor x = numbers({4});
  const at::Tensor a = on_device(x);
  const at::Tensor before = at::mul(a, 2);
  // Reads element 9 of 4.
  at::Tensor out_of_range() { return at::index_select(a, 0, on_device(at::scalar_tensor(9, at::kLong).view({1}))); }
};

// ---- on the line of the call

TEST_F(Errors, ShapesThatDoNotFitAreATypedCallsError) {
  same_error([](Tensors& t) { at::add(t[0], t[1]); }, {numbers({4}), numbers({3})});
}

TEST_F(Errors, ShapesThatDoNotFitAreAnInPlaceCallsError) {
  same_error([](Tensors& t) { t[0].select(0, 1).mul_(t[1]); }, {numbers({2, 3}), numbers({2, 3})});
}

TEST_F(Errors, ShapesThatDoNotFitAreABoxedCallsError) {
  same_error([](Tensors& t) { at::add_out(t[0], t[1], t[2]); }, {numbers({4}), numbers({3}), numbers({2})});
}

TEST_F(Errors, ADtypeThatOnlyTheCpuKernelRefusesIsRefusedAtOnce) {
  same_error([](Tensors& t) { at::mm(t[0], t[1]); }, {numbers({2, 2}).gt(0), numbers({2, 2}).gt(0)});
}

TEST_F(Errors, AViewThatDoesNotExistIsRefused) {
  same_error([](Tensors& t) { t[0].select(0, 9); }, {numbers({4})});
  same_error([](Tensors& t) { t[0].view({3}); }, {numbers({4})});
}

TEST_F(Errors, AWriteThatOverlapsItselfIsRefused) {
  same_error([](Tensors& t) { t[0].expand({2, 3}).add_(1); }, {numbers({1, 3})});
}

TEST_F(Errors, AWrongCallIsNotRecordedAndIsWrongAgain) {
  const at::Tensor b = on_device(numbers({3}));
  for (int i = 0; i < 2; ++i) {
    mark();
    EXPECT_NE(error_of([&] { at::add(a, b); }), "");
    // It is known from then on: asked for by its recorder and by the catch-all.
    Counts expected{.straight = 1, .fallbacks = {{"aten::add.Tensor", 1}}};
    (i == 0 ? expected.misses : expected.hits) = i == 0 ? 1 : 2;
    EXPECT_EQ(seen(), expected);
  }
}

TEST_F(Errors, TensorsOfTwoDevicesAreRefusedByName) {
  const std::string both = "hetero:0 and cpu";
  at::Tensor target = on_device(x);
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { at::add(a, x); }, [&] { at::add(x, a); }, [&] { target.mul_(x); },
                                          [&] { at::add_out(target, a, x); }}) {
    const std::string message = error_of(call);
    EXPECT_NE(message.find("Expected all tensors to be on the same device"), std::string::npos) << message;
  }
  EXPECT_NE(error_of([&] { at::add(a, x); }).find(both), std::string::npos);
  expect_same(target, x);
}

// ---- when the kernel runs

TEST_F(Errors, AnIndexOutOfRangeIsRaisedByTheFirstRead) {
  const std::string expected = error_of([&] { at::index_select(x, 0, at::scalar_tensor(9, at::kLong).view({1})); });
  EXPECT_NE(expected, "");
  const at::Tensor wrong = out_of_range();
  EXPECT_EQ(error_of([&] { wrong.cpu(); }), expected);
  EXPECT_EQ(error_of([&] { wrong.item(); }), expected);
}

TEST_F(Errors, WhatDependsOnAFailureFailsAndNothingElseDoes) {
  const at::Tensor wrong = out_of_range();
  const at::Tensor dependent = at::relu(wrong);
  const at::Tensor independent = at::relu(a);
  mark_pending();
  EXPECT_NE(error_of([] { flush_all(SyncReason::kFlush); }), "");
  EXPECT_EQ(seen().skipped, 1);
  EXPECT_EQ(error_of([&] { dependent.cpu(); }), error_of([&] { wrong.cpu(); }));
  expect_same(independent, at::relu(x));
  // Nodes recorded later fail as well.
  EXPECT_EQ(error_of([&] { at::add(wrong, 1).cpu(); }), error_of([&] { wrong.cpu(); }));
}

TEST_F(Errors, AFailedInPlaceWritePoisonsItsTensorUntilItIsOverwritten) {
  at::Tensor target = on_device(x);
  target.add_(out_of_range());
  EXPECT_NE(error_of([&] { target.cpu(); }), "");
  at::mul_out(target, a, a);
  expect_same(target, at::mul(x, x));
}

TEST_F(Errors, AnErrorThatNobodyCouldRaiseIsRaisedByTheNextFlush) {
  const at::Tensor wrong = out_of_range();
  flush_all(SyncReason::kSettings);
  EXPECT_NE(error_of([] { flush_all(SyncReason::kFlush); }), "");
  EXPECT_EQ(error_of([] { flush_all(SyncReason::kFlush); }), "");
}

TEST_F(Errors, AFailureThatIsDeadIsNone) {
  out_of_range();
  EXPECT_EQ(error_of([] { flush_all(SyncReason::kFlush); }), "");
}

}  // namespace
}  // namespace hetero::ops::testing
