// Calls that are recorded: each becomes a node (or a view), nothing runs, and the values read later
// are the CPU's.

#include <ATen/ops/_conj.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>

#include "ops/dispatch/catch_all.h"
#include "ops/kernels/boxed.h"
#include "ops/run/sync.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

class Recording : public OpsTest {
 public:
  const at::Tensor x = numbers({3, 4}, 1);
  const at::Tensor y = numbers({3, 4}, 2);
};

// ---- typed recorders

TEST_F(Recording, AnOperatorWithARowIsRecordedByItsTypedRecorder) {
  const Counts counts = path_of([](Tensors& t) { return at::add(t[0], t[1], 2); }, {x, y});
  EXPECT_EQ(counts, (Counts{.typed = 1, .hits = 1}));
}

TEST_F(Recording, OnlyAnOperatorWithoutARowRunsOnTheBoxedKernel) {
  at::cosh(on_device(x));  // enters the table when it is first called
  const graph::OpTable& table = graph::op_table();
  ASSERT_LT(table.find("aten::add.Tensor"), table.size());
  EXPECT_NE(table[table.find("aten::add.Tensor")].kernel, &boxed_kernel);
  ASSERT_LT(table.find("aten::cosh"), table.size());
  EXPECT_EQ(table[table.find("aten::cosh")].kernel, &boxed_kernel);
}

TEST_F(Recording, ATypedOperatorMayHaveSeveralResults) {
  const Counts counts = path_of([](Tensors& t) { return at::max(t[0], 1); }, {x});
  EXPECT_EQ(counts, (Counts{.typed = 1, .hits = 1}));
}

TEST_F(Recording, ATypedOperatorMayTakeAListOfTensors) {
  const Counts counts = path_of([](Tensors& t) { return at::cat({t[0], t[1], t[0]}, 1); }, {x, y});
  EXPECT_EQ(counts, (Counts{.typed = 1, .hits = 1}));
}

TEST_F(Recording, BroadcastingAndPromotionAreTheCpus) {
  const Counts counts =
      path_of([](Tensors& t) { return at::addcmul(t[0], t[1], t[2].select(0, 0)); }, {x, y.to(at::kDouble), x});
  EXPECT_EQ(counts, (Counts{.typed = 1, .views = 1, .hits = 1}));
}

TEST_F(Recording, TheFirstCallOfAKindIsAMissAndIsRecordedToo) {
  const at::Tensor a = on_device(x), b = on_device(y);
  mark();
  const at::Tensor sum = at::add(a, b);
  EXPECT_EQ(seen(), (Counts{.typed = 1, .hits = 1, .misses = 1}));
  expect_same(sum, at::add(x, y));
}

TEST_F(Recording, ReadingRunsTheRecordedNodeOnce) {
  const at::Tensor sum = at::add(on_device(x), on_device(y));
  mark_pending();
  for (int i = 0; i < 2; ++i) expect_same(sum, at::add(x, y));
  EXPECT_EQ(seen(), (Counts{.kernels = 1, .flushes = {{SyncReason::kCopyToDevice, 1}}}));
}

TEST_F(Recording, AZeroDimCpuTensorIsTakenByValueWhenTheCallIsRecorded) {
  at::Tensor factor = at::scalar_tensor(3.0);
  const at::Tensor a = on_device(x);
  at::mul(a, factor);
  mark();
  const at::Tensor product = at::mul(a, factor);
  EXPECT_EQ(seen(), (Counts{.typed = 1, .hits = 1}));
  factor.zero_();
  expect_same(product, at::mul(x, 3.0));
}

// ---- the catch-all

TEST_F(Recording, AnOperatorWithoutARowIsRecordedByTheCatchAll) {
  const Counts counts = path_of([](Tensors& t) { return at::cosh(t[0]); }, {x});
  EXPECT_EQ(counts, (Counts{.boxed = 1, .hits = 1}));
}

TEST_F(Recording, AnOutIsWrittenByARecordedNode) {
  const Counts counts = path_of([](Tensors& t) { return at::add_out(t[2], t[0], t[1]); }, {x, y, numbers({3, 4}, 3)});
  EXPECT_EQ(counts, (Counts{.boxed = 1, .hits = 1}));
}

TEST_F(Recording, AnOutMayBeAView) {
  const auto into_row = [](Tensors& t) {
    at::Tensor row = t[1].select(0, 1);
    return at::mul_out(row, t[0].select(0, 2), t[0].select(0, 0));
  };
  EXPECT_EQ(path_of(into_row, {x, y}), (Counts{.boxed = 1, .views = 3, .hits = 1}));
}

TEST_F(Recording, AnOutOfAnotherShapeIsResizedWithoutRunningAnything) {
  const Counts counts = path_of([](Tensors& t) { return at::add_out(t[2], t[0], t[1]); }, {x, y, at::empty({0})});
  // That it is resized is known, and so is the call with what it becomes.
  EXPECT_EQ(counts, (Counts{.boxed = 1, .hits = 2}));
}

TEST_F(Recording, ResizingTheStorageOfAnOutRunsItsPendingReadersFirst) {
  const at::Tensor a = on_device(x);
  const at::Tensor base = on_device(numbers({2}, 3));
  at::Tensor out = base.slice(0, 0, 0);
  mark();
  const at::Tensor reader = at::add(base, 1);
  at::add_out(out, a, a);
  EXPECT_EQ(seen().flushes, (std::map<SyncReason, int64_t>{{SyncReason::kStorageChange, 1}}));
  expect_same(reader, at::add(numbers({2}, 3), 1));
  expect_same(out, at::add(x, x));
}

// ---- views

TEST_F(Recording, AViewIsNoNode) {
  const auto corner = [](Tensors& t) { return t[0].view({4, 3}).transpose(0, 1).slice(1, 1, 4, 2).select(0, 2); };
  EXPECT_EQ(path_of(corner, {x}), (Counts{.views = 4}));
  const at::Tensor a = on_device(x);
  EXPECT_EQ(storage_of(a.t()), storage_of(a));
}

TEST_F(Recording, AViewOfAPendingValueIsNoReasonToRun) {
  const auto view_of_sum = [](Tensors& t) { return at::add(t[0], 1).t().expand({2, 4, 3}); };
  EXPECT_EQ(path_of(view_of_sum, {x}), (Counts{.typed = 1, .views = 2, .hits = 1}));
}

TEST_F(Recording, AConjugateViewIsReadByARecordedCopy) {
  const auto product = [](Tensors& t) { return at::mul(at::_conj(t[0]), at::view_as_real(t[0]).select(2, 1)); };
  const Counts counts = path_of(product, {x.to(at::kComplexFloat).add(y, c10::complex<double>(0, 1))});
  EXPECT_EQ(counts, (Counts{.typed = 2, .views = 2, .hits = 2}));
}

// ---- in place

TEST_F(Recording, AnInPlaceCallReturnsItsArgument) {
  const Counts counts = path_of([](Tensors& t) { return t[0].add_(t[1]); }, {x, y});
  EXPECT_EQ(counts, (Counts{.typed = 1, .hits = 1}));
  at::Tensor a = on_device(x);
  const uint32_t version = a._version();
  EXPECT_TRUE(a.relu_().is_same(a));
  EXPECT_EQ(a._version(), version + 1);
}

TEST_F(Recording, AWriteThroughAViewIsAWriteOfTheBase) {
  const Counts counts = path_of([](Tensors& t) { return t[0].t().select(0, 1).mul_(2); }, {x});
  EXPECT_EQ(counts, (Counts{.typed = 1, .views = 2, .hits = 1}));
}

TEST_F(Recording, ReadsAndWritesOfOneStorageKeepTheirOrder) {
  const auto interleaved = [](Tensors& t) {
    const at::Tensor before = at::add(t[0], 0);
    t[0].select(0, 0).fill_(7);
    const at::Tensor between = at::add(t[0], 0);
    t[0].select(1, 0).mul_(-1);
    return Tensors{before, between, at::add(t[0], 0)};
  };
  EXPECT_EQ(path_of(interleaved, {x}), (Counts{.typed = 5, .views = 2, .hits = 5}));
}

TEST_F(Recording, BatchNormUpdatesItsRunningStatistics) {
  // Its schema does not say so. Nobody reads its results: only the written statistics keep it
  // alive. In float64, whose kernel is PyTorch's.
  const auto train = [](Tensors& t) {
    at::native_batch_norm(t[0], {}, {}, t[1], t[2], true, 0.1, 1e-5);
    return Tensors{at::add(t[1], 0), at::add(t[2], 0)};
  };
  const Counts counts = path_of(
      train, {numbers({5, 4}).to(at::kDouble), numbers({4}, 2).to(at::kDouble), numbers({4}, 3).abs().to(at::kDouble)});
  EXPECT_EQ(counts, (Counts{.typed = 3, .hits = 3}));
}

// ---- factories

TEST_F(Recording, EmptyMakesATensorAndNothingElse) {
  mark();
  const at::Tensor made = at::empty({2, 3}, at::TensorOptions(kDevice).dtype(at::kHalf));
  EXPECT_EQ(seen(), Counts{});
  EXPECT_TRUE(is_hetero(made));
  EXPECT_TRUE(is_fresh(storage_of(made)));
  EXPECT_EQ(made.nbytes(), 12u);
}

TEST_F(Recording, FullAndZerosAreOneFill) {
  const auto filled = [](Tensors& t) { return Tensors{at::full({2, 2}, 1.5, t[0].options()), at::zeros_like(t[0])}; };
  EXPECT_EQ(path_of(filled, {x}), (Counts{.typed = 2, .hits = 2}));
}

TEST_F(Recording, ARangeIsRecordedWhole) {
  const auto range = [](Tensors& t) { return at::arange(1, 9, 2, t[0].options().dtype(at::kLong)); };
  EXPECT_EQ(path_of(range, {x}), (Counts{.boxed = 1, .hits = 1}));
}

// ---- what need not run

TEST_F(Recording, AValueThatNobodyCanReadIsNeverComputed) {
  const at::Tensor a = on_device(x);
  mark();
  at::relu(at::add(a, 1));
  const at::Tensor kept = at::mul(a, 2);
  flush_all(SyncReason::kFlush);
  EXPECT_EQ(seen().dead, 2);
  EXPECT_EQ(seen().kernels, 1);
  expect_same(kept, at::mul(x, 2));
}

TEST_F(Recording, AViewKeepsItsBaseAlive) {
  mark();
  const at::Tensor row = at::add(on_device(x), 1).select(0, 1);
  flush_all(SyncReason::kFlush);
  EXPECT_EQ(seen().dead, 0);
  expect_same(row, at::add(x, 1).select(0, 1));
}

TEST_F(Recording, AnOverwrittenValueIsNeverComputed) {
  const at::Tensor a = on_device(x);
  at::Tensor out = on_device(y);
  mark();
  out.mul_(2);
  at::add_out(out, a, a);
  flush_all(SyncReason::kFlush);
  EXPECT_EQ(seen().dead, 1);
  EXPECT_EQ(seen().kernels, 1);
  expect_same(out, at::add(x, x));
}

// ---- the first call of a kind

TEST_F(Recording, TheFirstLargeCallOfAKindRunsAndTeachesTheNext) {
  const at::Tensor large = numbers({1 << 19});
  const at::Tensor a = on_device(large);
  static int64_t shift = 0;
  ++shift;  // a kind that this process has not seen
  mark();
  const at::Tensor first = at::roll(a, shift, 0);
  EXPECT_EQ(seen(), (Counts{.straight = 1, .misses = 1}));
  mark();
  const at::Tensor second = at::roll(a, shift, 0);
  EXPECT_EQ(seen(), (Counts{.typed = 1, .hits = 1}));
  expect_same({first, second}, {at::roll(large, shift, 0), at::roll(large, shift, 0)});
}

}  // namespace
}  // namespace hetero::ops::testing
