// Prediction: a program that repeats is known call by call, and at its end its plan is known; sizes and numbers are not part of it.

#include <gtest/gtest.h>

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>
#include <thread>

#include "ops/record/plan_cache.h"
#include "ops/record/recorder.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "ops/settings/counters.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

struct Plans {
  int64_t predicted = counters().predicted_nodes;
  int64_t mispredicted = counters().mispredicted_nodes;
  int64_t misses = counters().meta_misses;
  int64_t written = counters().written_nodes;
  int64_t made = counters().plans_made;
  int64_t resized = counters().plans_resized;
  int64_t replayed = counters().plans_replayed;
};

Plans operator-(const Plans& a, const Plans& b) {
  return {a.predicted - b.predicted, a.mispredicted - b.mispredicted, a.misses - b.misses,    a.written - b.written,
          a.made - b.made,           a.resized - b.resized,           a.replayed - b.replayed};
}

// What `times` runs of `program` took, after the device has seen it often enough to have a plan.
template <typename Program>
Plans steady(Program program, int times = 3) {
  for (int i = 0; i < 3; ++i) program();
  const Plans before;
  for (int i = 0; i < times; ++i) program();
  return Plans() - before;
}

using PredictionTest = OpsTest;

TEST_F(PredictionTest, ARepeatedProgramIsPredictedAndReplayed) {
  const at::Tensor x = on_device(numbers({4, 4}));
  const at::Tensor expected = at::relu(at::add(at::mul(numbers({4, 4}), 2.0), numbers({4, 4})));
  const Plans seen = steady([&] { expect_same(at::relu(at::add(at::mul(x, 2.0), x)), expected); });
  EXPECT_EQ(seen.predicted, 9);
  EXPECT_EQ(seen.misses, 0);
  EXPECT_EQ(seen.made, 0);
  EXPECT_EQ(seen.replayed, 3);
}

TEST_F(PredictionTest, OtherTensorsOfTheSameShapeAreTheSameProgram) {
  const Plans seen = steady([&] {
    const at::Tensor x = on_device(numbers({3}));
    expect_same(at::exp(at::mul(x, x)), at::exp(at::mul(numbers({3}), numbers({3}))));
  });
  EXPECT_EQ(seen.replayed, 3);
  EXPECT_EQ(seen.made, 0);
}

TEST_F(PredictionTest, AnotherNumberIsNoOtherProgram) {
  const at::Tensor x = on_device(numbers({5}));
  double factor = 1;
  const Plans seen = steady([&] {
    factor += 0.5;
    expect_same(at::add(at::mul(x, factor), x, factor), at::add(at::mul(numbers({5}), factor), numbers({5}), factor));
  });
  EXPECT_EQ(seen.replayed, 3);
  EXPECT_EQ(seen.misses, 0);
}

TEST_F(PredictionTest, AForkIsAMispredictionOnceAndKnownThen) {
  const at::Tensor x = on_device(numbers({4}));
  bool fork = false;
  const auto program = [&] {
    at::Tensor y = at::mul(x, 2.0);
    y = fork ? at::exp(y) : at::relu(y);
    fork = !fork;
    return at::add(y, x).cpu();
  };
  for (int i = 0; i < 6; ++i) program();
  const Plans before;
  for (int i = 0; i < 4; ++i) program();
  const Plans seen = Plans() - before;
  EXPECT_EQ(seen.mispredicted, 0);  // both branches are tried
  EXPECT_EQ(seen.predicted, 12);
  EXPECT_EQ(seen.replayed, 4);
}

TEST_F(PredictionTest, GrowingSizesAreTheSameProgram) {
  at::Tensor grown = on_device(numbers({1, 2}));
  at::Tensor expected = numbers({1, 2});
  const auto program = [&] {
    grown = at::cat({grown, on_device(numbers({1, 2}))}, 0);
    expected = at::cat({expected, numbers({1, 2})}, 0);
    expect_same(at::relu(at::mul(grown, 2.0)), at::relu(at::mul(expected, 2.0)));
  };
  for (int i = 0; i < 6; ++i) program();
  const Plans before;
  for (int i = 0; i < 5; ++i) program();
  const Plans seen = Plans() - before;
  EXPECT_EQ(seen.made, 0);
  EXPECT_EQ(seen.resized, 5);
}

TEST_F(PredictionTest, ASizeAmongTheArgumentsIsTheSameProgram) {
  int64_t end = 1;
  const auto program = [&] {
    ++end;
    const at::Tensor positions = at::arange(end, end + 1, at::TensorOptions(kHetero));
    expect_same(at::mul(positions, 2), at::mul(at::arange(end, end + 1), 2));
  };
  for (int i = 0; i < 4; ++i) program();
  const Plans before;
  for (int i = 0; i < 4; ++i) program();
  EXPECT_EQ((Plans() - before).made, 0);
}

TEST_F(PredictionTest, WhatAReadLeavesPendingIsPredictedToo) {
  const at::Tensor x = on_device(numbers({4}));
  const Plans seen = steady([&] {
    const at::Tensor first = at::mul(x, 2.0);
    const at::Tensor second = at::exp(x);
    expect_same(first, at::mul(numbers({4}), 2.0));
    expect_same(at::add(second, 1.0), at::add(at::exp(numbers({4})), 1.0));
  });
  EXPECT_EQ(seen.made, 0);
  EXPECT_EQ(seen.replayed, 6);
}

TEST_F(PredictionTest, WhoElseHoldsAResultIsPartOfThePlan) {
  const at::Tensor x = on_device(numbers({4}));
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 8; ++i) {
    const at::Tensor product = at::mul(x, 2.0);
    if (i % 2 == 0) kept.push_back(product);
    expect_same(at::add(product, 1.0), at::add(at::mul(numbers({4}), 2.0), 1.0));
  }
  for (const at::Tensor& product : kept) expect_same(product, at::mul(numbers({4}), 2.0));
}

TEST_F(PredictionTest, ARepeatedTraceIsNotWrittenDown) {
  const at::Tensor x = on_device(numbers({4, 4}));
  double factor = 1;
  const auto program = [&] {
    factor += 0.5;
    const at::Tensor y = at::add(at::mul(x, factor), x);
    expect_same(at::relu(at::add(y, y, factor)),
                at::relu(at::mul(at::add(at::mul(numbers({4, 4}), factor), numbers({4, 4})), 1 + factor)));
  };
  EXPECT_EQ(steady(program).written, 0);
  // Sizes that come back: the trie's nodes have changed since the plan was made.
  const at::Tensor other = on_device(numbers({2, 8}));
  const auto resized = [&](const at::Tensor& of) { return at::relu(at::mul(of, 3.0)).cpu(); };
  for (int i = 0; i < 4; ++i) {
    expect_same(resized(x), at::relu(at::mul(numbers({4, 4}), 3.0)));
    expect_same(resized(other), at::relu(at::mul(numbers({2, 8}), 3.0)));
    expect_same(resized(other), at::relu(at::mul(numbers({2, 8}), 3.0)));
  }
}

TEST_F(PredictionTest, ACallThatDiffersInItsLastArgumentKeepsTheNumbersBeforeIt) {
  const at::Tensor x = on_device(numbers({4}));
  int64_t turn = 0;
  const auto program = [&] {
    const at::Scalar alpha = ++turn % 2 == 0 ? at::Scalar(0.5) : at::Scalar(2);
    const at::Tensor y = at::mul(x, 0.25 * static_cast<double>(turn));
    expect_same(at::add(at::add(y, x, alpha), 1.5),
                at::add(at::add(at::mul(numbers({4}), 0.25 * static_cast<double>(turn)), numbers({4}), alpha), 1.5));
  };
  for (int i = 0; i < 10; ++i) program();
}

TEST_F(PredictionTest, TensorsThatShareAStorageAreAnotherProgram) {
  const at::Tensor x = on_device(numbers({4})), y = on_device(at::mul(numbers({4}), -3.0));
  for (int i = 0; i < 6; ++i) {
    const at::Tensor& second = i % 3 == 2 ? x : y;
    const at::Tensor expected = i % 3 == 2 ? numbers({4}) : at::mul(numbers({4}), -3.0);
    expect_same(at::add(at::mul(x, second), second), at::add(at::mul(numbers({4}), expected), expected));
  }
}

TEST_F(PredictionTest, APlanIsNotTakenForATraceWhoseResultsLiveOn) {
  const at::Tensor x = on_device(numbers({4}));
  for (int i = 0; i < 9; ++i) {
    at::Tensor kept;
    {
      const at::Tensor y = at::mul(x, 2.0);
      if (i % 3 == 2) kept = y;
      expect_same(at::exp(y), at::exp(at::mul(numbers({4}), 2.0)));
    }
    if (kept.defined()) expect_same(kept, at::mul(numbers({4}), 2.0));
  }
}

TEST_F(PredictionTest, TheRestOfASplitTraceKeepsItsOwnSizes) {
  // The meta cache learns the calls behind another first one.
  for (const int64_t n : {8, 16}) {
    const at::Tensor x = on_device(numbers({n}));
    const at::Tensor w = at::relu(x), a = at::add(x, 1), b = at::mul(x, 2), c = at::exp(x);
    flush_all(SyncReason::kFlush);
  }
  const auto program = [&](int64_t n, bool twice) {
    const at::Tensor x = on_device(numbers({n})), y = on_device(numbers({n})), z = on_device(numbers({n}));
    const at::Tensor c = at::add(x, 1), p = at::mul(y, 2), q = at::exp(z);
    expect_same(c, at::add(numbers({n}), 1));
    if (twice) expect_same(p, at::mul(numbers({n}), 2));
    flush_all(SyncReason::kFlush);
    expect_same(q, at::exp(numbers({n})));
  };
  program(8, false);
  program(16, true);  // what is left is split again
  const at::Tensor z = on_device(numbers({16}));
  const at::Tensor q = at::exp(z);
  EXPECT_EQ(q.sizes(), at::IntArrayRef({16}));
  expect_same(q, at::exp(numbers({16})));
}

TEST_F(PredictionTest, WithoutFusionAKeptPlanIsMadeAnew) {
  const at::Tensor x = on_device(numbers({4}));
  const auto program = [&] { expect_same(at::exp(at::mul(x, 2.0)), at::exp(at::mul(numbers({4}), 2.0))); };
  for (int i = 0; i < 3; ++i) program();
  config().fusion = false;
  const int64_t fused = counters().fused_groups;
  for (int i = 0; i < 3; ++i) program();
  EXPECT_EQ(counters().fused_groups - fused, 0);
  config().fusion = true;
  for (int i = 0; i < 3; ++i) program();
  EXPECT_GT(counters().fused_groups - fused, 0);
}

TEST_F(PredictionTest, ALoopThatReadsNothingIsCutAtTheSamePlace) {
  config().pending_nodes = 100;
  at::Tensor x = on_device(numbers({4}));
  at::Tensor expected = numbers({4});
  // 37 nodes, which do not divide 100.
  const auto body = [](at::Tensor value) {
    for (int i = 0; i < 18; ++i) value = at::mul(at::add(value, 0.5 + i), 0.25);
    return at::relu(value);
  };
  const Plans seen = steady(
      [&] {
        for (int i = 0; i < 60; ++i) x = body(x), expected = body(expected);
        expect_same(x, expected);
      },
      1);
  EXPECT_EQ(seen.made, 0);
  EXPECT_GE(seen.replayed, 20);
}

TEST_F(PredictionTest, ATraceThatIsTooLongAndHasNoBeginningInItRunsWhole) {
  config().pending_nodes = 50;
  at::Tensor x = on_device(numbers({4}));
  at::Tensor expected = numbers({4});
  for (int i = 0; i < 30; ++i) {
    // Ever longer pieces of one kind.
    for (int k = 0; k < i; ++k) x = at::add(x, 1.0), expected = at::add(expected, 1.0);
    x = at::mul(x, 0.5), expected = at::mul(expected, 0.5);
  }
  expect_same(x, expected);
}

TEST_F(PredictionTest, ProgramsThatNeverRepeatDoNotGrowWhatIsRemembered) {
  config().cache_bytes = 1 << 18;
  const auto remembered = [] {
    Locked lock(recorder().mutex());
    return recorder().trie().bytes() + PlanSet::total_bytes() + recorder().meta_cache().bytes();
  };
  for (int64_t size = 1; size <= 1500; ++size) {
    at::relu(at::mul(on_device(numbers({size % 97 + 1, size / 97 + 1})), 2.0)).cpu();
    ASSERT_LE(remembered(), size_t{1} << 18);
  }
  const at::Tensor x = on_device(numbers({4}));
  expect_same(at::mul(x, 2.0), at::mul(numbers({4}), 2.0));
}

TEST_F(PredictionTest, ALongTraceIsForgottenWithoutRecursion) {
  at::Tensor x = on_device(numbers({1}));
  for (int i = 0; i < 4000; ++i) x = at::add(x, 1.0);
  expect_same(x, at::add(numbers({1}), 4000.0));
  Locked lock(recorder().mutex());
  recorder().forget();
  EXPECT_EQ(recorder().trie().bytes(), 0u);
}

TEST_F(PredictionTest, ThreadsThatInterleaveGetTheirOwnResults) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const at::Tensor x = on_device(numbers({4}));
      for (int i = 0; i < 50; ++i) {
        expect_same(at::add(at::mul(x, 1.0 + t), 1.0), at::add(at::mul(numbers({4}), 1.0 + t), 1.0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(PredictionTest, AMispredictionSaysWhatWasExpected) {
  const at::Tensor x = on_device(numbers({4}));
  at::relu(at::mul(x, 2.0)).cpu();
  at::exp(at::mul(x, 2.0)).cpu();
  Locked lock(recorder().mutex());
  const auto latest = recorder().mispredictions();
  ASSERT_FALSE(latest.empty());
  EXPECT_EQ(graph::op_table()[latest.back().expected].name, "aten::relu");
  EXPECT_EQ(graph::op_table()[latest.back().recorded].name, "aten::exp");
  EXPECT_EQ(latest.back().position, 1u);
  EXPECT_EQ(latest.back().difference, Difference::kOperator);
}

}  // namespace
}  // namespace hetero::ops::testing
