// Random operators: their numbers are settled when they are recorded, and follow from seed and
// offset alone.

#include <ATen/ops/full.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/poisson.h>
#include <ATen/ops/rand.h>

#include "backend/base/random.h"
#include "ops/record/call.h"
#include "ops/record/generator.h"
#include "ops/run/sync.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

constexpr uint64_t kSeed = 2024;

class Random : public OpsTest {
 public:
  void SetUp() override {
    OpsTest::SetUp();
    seed();
  }
  static void seed() { generator().set_current_seed(kSeed); }
  static HeteroGenerator& generator() {
    return *static_cast<HeteroGenerator*>(default_generator().unsafeGetGeneratorImpl());
  }
  static at::Tensor uniform() { return at::rand({6}, kDevice); }
  // Element k of the operator that drew `offset`.
  static float expected(uint64_t offset, int k) {
    const uint32_t word = backend::philox(kSeed, (offset << 32) + k / 4)[k % 4];
    return static_cast<float>(word >> 8) * 0x1p-24f;
  }
};

TEST_F(Random, AnOperatorWithARowIsRecordedAndDrawsOneOffset) {
  uniform();
  seed();
  mark();
  const at::Tensor first = uniform(), second = uniform();
  EXPECT_EQ(seen(), (Counts{.typed = 2, .hits = 2}));
  EXPECT_EQ(generator().get_offset(), 2u);
  const at::Tensor a = first.cpu(), b = second.cpu();
  for (int k = 0; k < 6; ++k) {
    EXPECT_EQ(a.const_data_ptr<float>()[k], expected(0, k));
    EXPECT_EQ(b.const_data_ptr<float>()[k], expected(1, k));
  }
}

TEST_F(Random, NumbersDoNotDependOnWhenTheyAreComputed) {
  const at::Tensor early = uniform().cpu();
  const at::Tensor middle = uniform().cpu();
  seed();
  const at::Tensor first = uniform(), second = uniform();
  generator().set_current_seed(1);
  expect_same(second, middle);
  expect_same(first, early);
}

TEST_F(Random, WritesThroughAViewFillTheViewOnly) {
  const at::Tensor base = on_device(at::full({2, 6}, 5.0f));
  base.select(1, 2).uniform_();
  const at::Tensor read = base.cpu();
  EXPECT_EQ(read[0][2].item<float>(), expected(0, 0));
  EXPECT_EQ(read[1][2].item<float>(), expected(0, 1));
  EXPECT_TRUE(read.slice(1, 3).eq(5).all().item<bool>());
}

TEST_F(Random, AnOperatorWithoutARowRunsTheCpuKernelOnADerivedGenerator) {
  const at::Tensor rates = numbers({50}).abs().mul(10);
  const at::Tensor device_rates = on_device(rates);
  at::poisson(device_rates);
  seed();
  mark();
  const at::Tensor drawn = at::poisson(device_rates);
  EXPECT_EQ(seen(), (Counts{.boxed = 1, .hits = 1}));
  expect_same(drawn, at::poisson(rates, derived_generator({kSeed, 0})));
}

TEST_F(Random, AGivenGeneratorIsDrawnFromInsteadOfTheDefaultOne) {
  at::Generator own = at::make_generator<HeteroGenerator>(kSeed);
  const at::Tensor drawn = at::rand({6}, own, kDevice);
  EXPECT_EQ(generator().get_offset(), 0u);
  EXPECT_EQ(own.get_offset(), 1u);
  expect_same(drawn, uniform().cpu());
}

TEST_F(Random, DropoutScalesWhatItsMaskKeeps) {
  const at::Tensor x = numbers({100});
  at::native_dropout(on_device(x), 0.25, true);
  const at::Tensor a = on_device(x);
  mark();
  const auto [dropped, mask] = at::native_dropout(a, 0.25, true);
  EXPECT_EQ(seen(), (Counts{.typed = 1, .hits = 1}));
  const at::Tensor kept = mask.cpu();
  EXPECT_TRUE(kept.any().item<bool>());
  EXPECT_FALSE(kept.all().item<bool>());
  expect_same(dropped, x.mul(kept).mul(1.0 / 0.75));
}

}  // namespace
}  // namespace hetero::ops::testing
