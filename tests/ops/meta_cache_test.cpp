// The meta cache: which calls share an entry, and that entries are found again.

#include "ops/record/meta_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include "ops/record/recorder.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

struct Key {
  graph::OpId op = 1;
  std::function<void(Call&)> fill = [](Call&) {};
  at::ScalarType default_dtype = at::kFloat;
};

void make_key(MetaCache& cache, const Key& key) {
  Locked lock(recorder().mutex());
  Call call;
  key.fill(call);
  cache.make_key(key.op, call, key.default_dtype);
}

bool same_key(const Key& a, const Key& b) {
  MetaCache cache;
  make_key(cache, a);
  cache.insert({});
  make_key(cache, b);
  return cache.find() != nullptr;
}

std::function<void(Call&)> reads(const Tensors& tensors) {
  return [tensors](Call& call) {
    for (const at::Tensor& tensor : tensors) call.tensor(tensor, graph::Access::kRead);
  };
}

using MetaCacheTest = OpsTest;

TEST_F(MetaCacheTest, AKeyIsTheOperatorTheWindowsAndTheStructure) {
  const at::Tensor x = on_device(numbers({2, 2}));
  const at::Tensor other = on_device(numbers({2, 2}));
  const at::Tensor wide = on_device(numbers({2, 3}));
  EXPECT_TRUE(same_key({.fill = reads({x})}, {.fill = reads({other})}));
  EXPECT_FALSE(same_key({.op = 1, .fill = reads({x})}, {.op = 2, .fill = reads({x})}));
  EXPECT_FALSE(same_key({.fill = reads({x})}, {.fill = reads({wide})}));
  EXPECT_FALSE(same_key({.fill = reads({x})}, {.fill = reads({x.t()})}));
  EXPECT_FALSE(same_key({.fill = reads({x})}, {.fill = reads({x, x})}));
  EXPECT_FALSE(same_key({.fill = reads({x})}, {.fill = reads({x._neg_view()})}));
  EXPECT_FALSE(
      same_key({.fill = reads({x}), .default_dtype = at::kFloat}, {.fill = reads({x}), .default_dtype = at::kDouble}));
}

TEST_F(MetaCacheTest, OperandsThatShareAStorageAreAnotherCall) {
  const at::Tensor x = on_device(numbers({2, 2}));
  const at::Tensor y = on_device(numbers({2, 2}));
  EXPECT_FALSE(same_key({.fill = reads({x, y})}, {.fill = reads({x, x})}));
  EXPECT_FALSE(same_key({.fill = reads({x, y, x})}, {.fill = reads({x, y, y})}));
  EXPECT_TRUE(same_key({.fill = reads({x, y, x})}, {.fill = reads({y, x, y})}));
}

TEST_F(MetaCacheTest, ANumberIsInTheKeyWhereItMayDecideAShape) {
  const auto value = [](double number) { return Key{.fill = [=](Call& c) { c.scalar(number); }}; };
  const auto shape = [](double number) { return Key{.fill = [=](Call& c) { c.shape_scalar(number); }}; };
  EXPECT_TRUE(same_key(value(1), value(2)));
  EXPECT_FALSE(same_key(shape(1), shape(2)));
}

TEST_F(MetaCacheTest, EntriesAreFoundAfterGrowthAndGoneAfterClear) {
  constexpr int64_t kEntries = 5000;
  const auto key = [](int64_t i) { return Key{.fill = [=](Call& c) { c.integer(i); }}; };
  MetaCache cache;
  for (int64_t i = 0; i < kEntries; ++i) {
    make_key(cache, key(i));
    ASSERT_EQ(cache.find(), nullptr);
    MetaEntry entry;
    entry.outputs.push_back({.window = static_cast<graph::WindowId>(i), .storage_bytes = 8});
    EXPECT_EQ(cache.insert(std::move(entry))->outputs[0].window, i);
  }
  EXPECT_EQ(cache.size(), static_cast<size_t>(kEntries));
  for (int64_t i = 0; i < kEntries; ++i) {
    make_key(cache, key(i));
    ASSERT_NE(cache.find(), nullptr);
    ASSERT_EQ((*cache.find())->outputs[0].window, i);
  }
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.find(), nullptr);
}

TEST_F(MetaCacheTest, AnotherFactorIsAHitAndAnotherEndOfARangeIsAMiss) {
  const at::Tensor x = on_device(numbers({4}));
  at::mul(x, 2.0);
  at::Tensor out = on_device(at::arange(6));
  at::arange_out(out, 6);
  mark();
  const at::Tensor product = at::mul(x, 3.0);
  EXPECT_EQ(seen(), (Counts{.typed = 1, .hits = 1}));
  mark();
  at::arange_out(out, 0, 12, 2);
  EXPECT_EQ(seen().misses, 1);
  expect_same(product, at::mul(numbers({4}), 3.0));
  expect_same(out, at::arange(0, 12, 2));
}

TEST_F(MetaCacheTest, AFlushEmptiesACacheThatHasOutgrownItsBound) {
  config().cache_bytes = 4;
  const auto entries = [] {
    Locked lock(recorder().mutex());
    return recorder().meta_cache().size();
  };
  Tensors results;
  for (int64_t size = 1; size <= 8; ++size) results.push_back(at::mul(on_device(numbers({size})), 2.0));
  EXPECT_EQ(entries(), 8u);
  flush_all(SyncReason::kFlush);
  EXPECT_EQ(entries(), 0u);
  // Tensors from before are used under new numbers for their windows.
  for (int64_t size = 8; size >= 1; --size) {
    expect_same(at::mul(results[size - 1], 2.0), at::mul(at::mul(numbers({size}), 2.0), 2.0));
  }
}

TEST_F(MetaCacheTest, WindowsThatTakeOverOldNumbersAreNotMistakenForThem) {
  config().cache_bytes = 0;  // every flush starts the numbering of windows again
  const at::Tensor wide = on_device(numbers({2, 3})), tall = on_device(numbers({3, 2}));
  at::sum(wide, 0).cpu();
  expect_same(at::sum(wide, 0), at::sum(numbers({2, 3}), 0));
  expect_same(at::sum(tall, 0), at::sum(numbers({3, 2}), 0));
}

}  // namespace
}  // namespace hetero::ops::testing
