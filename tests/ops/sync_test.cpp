// Sync points: why something runs, how much of what is pending, and that what stays pending is not
// harmed.

#include "ops/run/sync.h"

#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <c10/core/DefaultDtype.h>

#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

class Sync : public OpsTest {
 public:
  void SetUp() override {
    OpsTest::SetUp();
    // All kinds of calls that these tests make are known.
    at::mul(at::add(a, 1), 2);
    on_device(x).mul_(2);
    mark();
  }

  static Counts ran(int64_t kernels, SyncReason reason) { return {.kernels = kernels, .flushes = {{reason, 1}}}; }

  const at::Tensor x = numbers({4});
  const at::Tensor a = on_device(x);
};

// ---- reading

TEST_F(Sync, ItemRunsTheAncestorsOfTheValueOnly) {
  const at::Tensor value = at::add(a, 1).select(0, 2);
  const at::Tensor other = at::mul(at::add(a, 2), 2);
  mark_pending();
  EXPECT_EQ(value.item<float>(), at::add(x, 1)[2].item<float>());
  EXPECT_EQ(seen(), ran(1, SyncReason::kReadScalar));
  EXPECT_EQ(pending_nodes(), 2u);
  mark_pending();
  expect_same(other, at::mul(at::add(x, 2), 2));
  EXPECT_EQ(seen(), ran(2, SyncReason::kCopyToDevice));
}

TEST_F(Sync, ASettledValueIsReadWithoutRunningAnything) {
  const at::Tensor value = at::add(a, 1);
  flush_all(SyncReason::kFlush);
  mark_pending();
  EXPECT_EQ(value[0].item<float>(), at::add(x, 1)[0].item<float>());
  EXPECT_EQ(seen(), (Counts{.views = 1}));
}

TEST_F(Sync, ReadingAWrittenTensorRunsItsEarlierReadersToo) {
  at::Tensor written = on_device(x);
  const at::Tensor before = at::add(written, 1);
  written.mul_(2);
  const at::Tensor after = at::add(written, 1);
  mark_pending();
  expect_same(written, at::mul(x, 2));
  EXPECT_EQ(seen(), ran(2, SyncReason::kCopyToDevice));
  EXPECT_EQ(pending_nodes(), 1u);
  expect_same({before, after}, {at::add(x, 1), at::add(at::mul(x, 2), 1)});
}

TEST_F(Sync, AnAncestorThatPendingNodesNeedRunsOnce) {
  const at::Tensor shared = at::add(a, 1);
  const at::Tensor read = at::mul(shared, 2);
  const at::Tensor later = at::mul(shared, 2);
  mark_pending();
  read.cpu();
  EXPECT_EQ(seen(), ran(2, SyncReason::kCopyToDevice));
  later.cpu();
  EXPECT_EQ(seen().kernels, 3);
  expect_same({read, later, shared}, {at::mul(at::add(x, 1), 2), at::mul(at::add(x, 1), 2), at::add(x, 1)});
}

TEST_F(Sync, WhatNeedsAnAncestorThatNobodyHoldsRunsWithIt) {
  at::Tensor shared = at::add(a, 1);
  const at::Tensor read = at::mul(shared, 2);
  const at::Tensor later = at::add(shared, 1);
  shared.reset();
  read.cpu();
  EXPECT_EQ(pending_nodes(), 0u);
  expect_same(later, at::add(at::add(x, 1), 1));
}

TEST_F(Sync, FlushRunsEverything) {
  const at::Tensor one = at::add(a, 1), two = at::mul(a, 2);
  mark_pending();
  flush_all(SyncReason::kFlush);
  EXPECT_EQ(seen(), ran(2, SyncReason::kFlush));
  EXPECT_EQ(pending_nodes(), 0u);
  mark_pending();
  flush_all(SyncReason::kFlush);
  EXPECT_EQ(seen(), Counts{});
  expect_same({one, two}, {at::add(x, 1), at::mul(x, 2)});
}

// ---- copies

TEST_F(Sync, AHostTensorIsReadWhenItIsCopiedToTheDevice) {
  at::Tensor host = x.clone();
  at::Tensor target = on_device(numbers({4}, 2));
  target.copy_(target);
  mark_pending();
  target.copy_(host);
  host.zero_();
  EXPECT_EQ(seen().kernels, 0);
  EXPECT_TRUE(seen().flushes.empty());
  expect_same(target, x);
}

TEST_F(Sync, ACopyIntoAHostTensorIsASyncPoint) {
  const at::Tensor value = at::add(a, 1);
  at::Tensor host = at::full({2, 4}, 0.0, at::kDouble);
  mark_pending();
  host.copy_(value);
  EXPECT_EQ(seen(), ran(1, SyncReason::kCopyToDevice));
  expect_same(host, at::add(x, 1).expand({2, 4}).to(at::kDouble));
}

TEST_F(Sync, ACopyBetweenDeviceTensorsIsRecorded) {
  const auto copy = [](Tensors& t) { return t[0].copy_(t[1]); };
  const Counts counts = path_of(copy, {numbers({2, 4}).to(at::kDouble), x});
  EXPECT_EQ(counts, (Counts{.typed = 1, .hits = 1}));
}

// ---- storages

TEST_F(Sync, GrowingAStorageRunsItsReadersAndKeepsItsBytes) {
  at::Tensor grown = on_device(x);
  const at::Tensor reader = at::add(grown, 1);
  const at::Tensor other = at::add(a, 2);
  mark_pending();
  grown.resize_({2, 4});
  EXPECT_EQ(seen(), ran(1, SyncReason::kStorageChange));
  EXPECT_EQ(pending_nodes(), 1u);
  EXPECT_EQ(storage_of(grown)->nbytes(), 32u);
  grown.select(0, 1).fill_(3);
  expect_same({grown.select(0, 0), grown.select(0, 1), reader, other},
              {x, at::full({4}, 3.0f), at::add(x, 1), at::add(x, 2)});
}

TEST_F(Sync, AResizeThatTheStorageHoldsChangesMetadataOnly) {
  at::Tensor shrunk = at::add(a, 1);
  const void* storage = storage_of(shrunk);
  mark_pending();
  shrunk.resize_({3});
  EXPECT_EQ(seen(), Counts{});
  EXPECT_EQ(storage_of(shrunk), storage);
  expect_same(shrunk, at::add(x, 1).slice(0, 0, 3));
}

TEST_F(Sync, SetSharesAStorageWithoutRunningAnything) {
  at::Tensor target = on_device(numbers({2}));
  const at::Tensor source = at::add(a, 1);
  mark_pending();
  target.set_(source);
  target.mul_(2);
  EXPECT_EQ(seen(), (Counts{.typed = 1, .hits = 1}));
  expect_same(source, at::mul(at::add(x, 1), 2));
}

TEST_F(Sync, AWriteToBytesThatTheHostSeesRunsAtOnce) {
  at::Tensor exported = on_device(x);
  const at::Tensor alias = host_alias(exported, SyncReason::kLeaveDispatcher, true);
  mark_pending();
  exported.mul_(2);
  Counts expected = ran(1, SyncReason::kExported);
  expected.typed = expected.hits = 1;
  EXPECT_EQ(seen(), expected);
  expect_same(alias, at::mul(x, 2));
}

// ---- limits and settings

TEST_F(Sync, PendingNodesAreLimited) {
  config().pending_nodes = 3;
  const at::Tensor one = at::add(a, 1), two = at::add(a, 2);
  EXPECT_EQ(seen().kernels, 0);
  const at::Tensor three = at::add(a, 3);
  EXPECT_EQ(seen().flushes, (std::map<SyncReason, int64_t>{{SyncReason::kPendingNodes, 1}}));
  EXPECT_EQ(seen().kernels, 3);
  expect_same({one, two, three}, {at::add(x, 1), at::add(x, 2), at::add(x, 3)});
}

TEST_F(Sync, PendingBytesAreLimited) {
  config().pending_bytes = 2 * a.nbytes();
  const at::Tensor one = at::add(a, 1);
  EXPECT_EQ(seen().kernels, 0);
  const at::Tensor two = at::add(a, 2);
  EXPECT_EQ(seen().flushes, (std::map<SyncReason, int64_t>{{SyncReason::kPendingBytes, 1}}));
  EXPECT_EQ(pending_nodes(), 0u);
  expect_same({one, two}, {at::add(x, 1), at::add(x, 2)});
}

TEST_F(Sync, SyncModeRunsEveryOperatorOnItsLine) {
  config().sync = true;
  const at::Tensor sum = at::add(a, 1);
  const at::Tensor product = at::mul(sum, 2);
  EXPECT_EQ(seen(), (Counts{.typed = 2, .hits = 2, .kernels = 2, .flushes = {{SyncReason::kSyncMode, 2}}}));
  expect_same(product, at::mul(at::add(x, 1), 2));
}

TEST_F(Sync, AnotherDefaultDtypeSeparatesTraces) {
  const at::Tensor whole = on_device(at::full({3}, 7));
  const auto with_default = [](at::ScalarType dtype, const auto& call) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
    const at::Tensor result = call();
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat));
    return result;
  };
  const at::Tensor single = at::mul(whole, 0.1);
  const at::Tensor twice = with_default(at::kDouble, [&] { return at::mul(whole, 0.1); });
  EXPECT_EQ(seen().flushes, (std::map<SyncReason, int64_t>{{SyncReason::kSettings, 1}}));
  EXPECT_EQ(seen().kernels, 1);
  // Run under the other default, it still computes what it was recorded to.
  const at::Tensor host = at::full({3}, 7);
  expect_same(twice, with_default(at::kDouble, [&] { return at::mul(host, 0.1); }));
  expect_same(single, at::mul(host, 0.1));
}

}  // namespace
}  // namespace hetero::ops::testing
