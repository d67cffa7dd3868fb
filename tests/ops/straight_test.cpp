// Calls that are run at once because they cannot be recorded: what they need runs first, and
// explain() can name them.

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/relu.h>

#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

class Straight : public OpsTest {
 public:
  const at::Tensor x = numbers({3, 4});

  // What a straight call after one pending node, which it needs, does.
  static Counts straight(const std::string& name, SyncReason reason) {
    return {.typed = 1, .straight = 1, .hits = 1, .kernels = 1, .flushes = {{reason, 1}}, .fallbacks = {{name, 1}}};
  }
};

TEST_F(Straight, NonzeroHasADataDependentShape) {
  const Counts counts = path_of([](Tensors& t) { return at::nonzero(at::relu(t[0])); }, {x});
  EXPECT_EQ(counts, straight("aten::nonzero", SyncReason::kDataDependentShape));
}

TEST_F(Straight, MaskedSelectHasADataDependentShape) {
  const Counts counts = path_of([](Tensors& t) { return at::masked_select(t[0], t[0].gt(0)); }, {x});
  EXPECT_EQ(counts, straight("aten::masked_select", SyncReason::kDataDependentShape));
}

TEST_F(Straight, IndexingByAMaskHasADataDependentShape) {
  const Counts counts = path_of([](Tensors& t) { return t[0].index({t[0].gt(0)}); }, {x});
  Counts expected = straight("aten::index.Tensor", SyncReason::kDataDependentShape);
  expected.hits = 3;  // the mask, and indexing by one, which is known to its recorder and to the catch-all
  EXPECT_EQ(counts, expected);
}

TEST_F(Straight, AnOutOfADataDependentShapeIsResized) {
  const auto into = [](Tensors& t) { return at::nonzero_out(t[1], at::relu(t[0])); };
  const Counts counts = path_of(into, {x, at::empty({0}, at::kLong)});
  EXPECT_EQ(counts, straight("aten::nonzero.out", SyncReason::kDataDependentShape));
}

TEST_F(Straight, AnAnswerThatIsNoTensorIsControlFlow) {
  const at::Tensor a = on_device(x), b = on_device(x);
  at::add(a, 0);
  mark();
  const at::Tensor same = at::add(a, 0);
  EXPECT_TRUE(at::equal(same, b));
  EXPECT_EQ(seen(), straight("aten::equal", SyncReason::kDataDependentValue));
}

TEST_F(Straight, AnOperatorWithoutMetaKernelIsAFallback) {
  const Counts counts = path_of([](Tensors& t) { return at::histc(at::relu(t[0]), 5, 0, 2); }, {x});
  Counts expected = straight("aten::histc", SyncReason::kNoMetaKernel);
  expected.hits = 2;  // the cache knows that it cannot be recorded
  EXPECT_EQ(counts, expected);
}

TEST_F(Straight, WithNothingPendingNothingIsFlushed) {
  const Counts counts = path_of([](Tensors& t) { return at::nonzero(t[0]); }, {x});
  EXPECT_EQ(counts, (Counts{.straight = 1, .fallbacks = {{"aten::nonzero", 1}}}));
}

TEST_F(Straight, OnlyWhatItNeedsRuns) {
  const at::Tensor a = on_device(x);
  mark();
  const at::Tensor other = at::add(a, 1);
  const at::Tensor needed = at::add(a, 2);
  const at::Tensor indices = at::nonzero(needed);
  EXPECT_EQ(seen().kernels, 1);
  EXPECT_EQ(pending_nodes(), 1u);
  expect_same({other, indices}, {at::add(x, 1), at::nonzero(at::add(x, 2))});
}

}  // namespace
}  // namespace hetero::ops::testing
