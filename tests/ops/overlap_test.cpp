// Overlap: pieces of a trace that run while the rest is recorded. The same values, the same plans, and errors where they belong.

#include "ops/run/overlap.h"

#include <ATen/ops/add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <c10/core/DefaultDtype.h>
#include <unistd.h>

#include <thread>

#include "ops/record/plan_cache.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

constexpr int kPieces = 4;

class OverlapTest : public OpsTest {
 public:
  void SetUp() override {
    OpsTest::SetUp();
    overlap().force_pieces(kPieces);
  }
  void TearDown() override {
    overlap().force_pieces(0);
    OpsTest::TearDown();
  }

  // Twenty nodes, of which some overwrite what earlier ones read, and most values are forgotten before the end.
  static Tensors program(const at::Tensor& x) {
    at::Tensor running = at::mul(x, 2);
    at::Tensor total = at::add(x, 1);
    for (int i = 0; i < 6; ++i) {
      const at::Tensor half = running.select(0, i % 2);
      half.add_(i);
      running = at::mul(at::add(running, total), 0.5);
    }
    total.mul_(running);
    return {running, total};
  }
  static Tensors run(const at::Tensor& x) {
    Tensors results = program(x);
    flush_all(SyncReason::kFlush);
    return results;
  }
  // Until it is recorded in pieces and every piece has its plan.
  static void warm_up(const at::Tensor& x) {
    for (int i = 0; i < 6; ++i) run(x);
  }
  int64_t flights() const {
    const auto& flushes = seen().flushes;
    const auto found = flushes.find(SyncReason::kOverlap);
    return found == flushes.end() ? 0 : found->second;
  }

  const at::Tensor x = numbers({2, 8});
  const at::Tensor a = on_device(x);
};

TEST_F(OverlapTest, BeginningsRunWhileTheRestIsRecorded) {
  const Tensors expected = program(x);
  for (int i = 0; i < 8; ++i) expect_same(run(a), expected);
  mark();
  expect_same(run(a), expected);
  EXPECT_EQ(flights(), kPieces - 1);
}

TEST_F(OverlapTest, EveryPieceFindsItsPlanHoweverFarTheFlightsAre) {
  warm_up(a);
  int64_t made = 0, resized = 0;
  const Tensors expected = program(x);
  for (int i = -12; i < 60; ++i) {
    if (i == 0) {
      made = counters().plans_made;
      resized = counters().plans_resized;
      mark();
    }
    at::Tensor running = at::mul(a, 2), total = at::add(a, 1);
    for (int k = 0; k < 6; ++k) {
      running.select(0, k % 2).add_(k);
      running = at::mul(at::add(running, total), 0.5);
      if (i % 3 == 1) ::usleep(200 * static_cast<useconds_t>(k % 2));
    }
    total.mul_(running);
    expect_same({running, total}, expected);
  }
  EXPECT_EQ(flights(), 60 * (kPieces - 1));
  EXPECT_EQ(counters().plans_made, made);
  EXPECT_EQ(counters().plans_resized, resized);
}

TEST_F(OverlapTest, ASyncPointTakesOverWhatHasNotRun) {
  warm_up(a);
  const Tensors expected = program(x);
  for (int i = 0; i < 30; ++i) {
    const Tensors results = program(a);
    // While it is held, the overlap thread does not run anything.
    if (i % 2 == 0) {
      const Executing executing;
      expect_same(results, expected);
    } else {
      expect_same(results, expected);
    }
  }
}

TEST_F(OverlapTest, ValuesThatDieBetweenRecordingAndRunningDoNotHarmOthers) {
  warm_up(a);
  for (int i = 0; i < 20; ++i) program(a);
  flush_all(SyncReason::kFlush);
  expect_same(run(a), program(x));
}

TEST_F(OverlapTest, AProgramThatReadsNothingDoesNotRunAway) {
  warm_up(a);
  at::Tensor last;
  for (int i = 0; i < 400; ++i) last = program(a)[0];
  expect_same(last, program(x)[0]);
}

TEST_F(OverlapTest, OffNothingFlies) {
  warm_up(a);
  config().overlap = false;
  mark();
  expect_same(run(a), program(x));
  EXPECT_EQ(flights(), 0);
  config().overlap = true;
  mark();
  run(a);
  EXPECT_EQ(flights(), kPieces - 1);
}

TEST_F(OverlapTest, AnErrorInFlightIsRaisedForWhoNeedsTheValueAndForNobodyElse) {
  at::Tensor index = on_device(at::scalar_tensor(1, at::kLong).view({1}));
  const auto call = [&] {
    Tensors results{at::index_select(a, 0, index)};
    results.push_back(at::add(a, 1));
    for (int i = 0; i < 20; ++i) results[1] = at::mul(results[1], 0.5);
    return results;
  };
  for (int i = 0; i < 6; ++i) {
    call();
    flush_all(SyncReason::kFlush);
  }
  index.fill_(9);
  flush_all(SyncReason::kFlush);
  mark();
  Tensors results = call();
  at::Tensor halved = at::add(x, 1);
  for (int i = 0; i < 20; ++i) halved = at::mul(halved, 0.5);
  expect_same(results[1], halved);
  EXPECT_GT(flights(), 0);
  EXPECT_THROW(results[0].cpu(), c10::IndexError);
  EXPECT_THROW(flush_all(SyncReason::kFlush), c10::IndexError);
  index.fill_(0);
  results = call();
  expect_same(results[0], at::index_select(x, 0, at::scalar_tensor(0, at::kLong).view({1})));
}

TEST_F(OverlapTest, AnotherDefaultDtypeWaitsForWhatIsInFlight) {
  const auto call = [](const at::Tensor& whole) {
    at::Tensor value = at::mul(whole, 0.3);
    for (int i = 0; i < 12; ++i) value = at::add(value, 0.1);
    return value;
  };
  const at::Tensor whole = at::add(at::mul(x, 100).to(at::kInt), 0), there = on_device(whole);
  const auto under = [&](at::ScalarType dtype, const at::Tensor& tensor) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
    const at::Tensor result = call(tensor);
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat));
    return result;
  };
  for (int i = 0; i < 8; ++i) {
    const at::Tensor wide = under(at::kDouble, there), narrow = under(at::kFloat, there);
    expect_same({wide, narrow}, {under(at::kDouble, whole), under(at::kFloat, whole)});
  }
}

TEST_F(OverlapTest, ThreadsThatRecordAndReadSeeTheirOwnValues) {
  warm_up(a);
  const Tensors expected = program(x);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 40; ++i) expect_same(program(a), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(OverlapTest, WhereItDoesNotPayATraceIsDividedNoMore) {
  warm_up(a);
  overlap().force_pieces(0);
  const TrieNode* node = nullptr;
  for (const TrieNode* first = recorder().trie().first(); first != nullptr && node == nullptr;
       first = first->sibling()) {
    for (node = first; node != nullptr && !node->is_mark();) node = node->first_child();
  }
  ASSERT_NE(node, nullptr);
  {
    const Executing executing;
    auto* const divided = const_cast<TrieNode*>(node);
    divided->plans().whole = std::chrono::milliseconds(1);
    for (int i = 0; i < 20; ++i) overlap().judge(divided, std::chrono::milliseconds(2));
  }
  mark();
  expect_same(run(a), program(x));
  EXPECT_EQ(flights(), 0);
}

TEST_F(OverlapTest, ShortTracesAreNotDivided) {
  overlap().force_pieces(0);
  for (int i = 0; i < 10; ++i) run(a);
  mark();
  run(a);
  EXPECT_EQ(flights(), 0);
}

}  // namespace
}  // namespace hetero::ops::testing
