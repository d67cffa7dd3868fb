// Products with a weight: every implementation gives the CPU's values, the choice is made once, and what was derived of a weight goes with its bytes.

#include "ops/kernels/linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "backend/base/parallel.h"
#include "backend/cpu/kernels/panel_gemm.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "ops/kernels/blas.h"
#include "ops/memory/packed_weights.h"
#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

namespace fs = std::filesystem;
using Implementation = LinearImplementation;

// PyTorch's default tolerances. The absolute one is scaled by the size of what is summed: k products of numbers about 1.
bool close(const at::Tensor& actual, const at::Tensor& expected, int64_t k) {
  const at::Tensor host = actual.cpu();
  if (host.scalar_type() != expected.scalar_type() || host.sizes() != expected.sizes()) return false;
  const bool single = expected.scalar_type() == at::kFloat;
  const double relative = single ? 1.3e-6 : expected.scalar_type() == at::kHalf ? 1e-3 : 1.6e-2;
  return at::allclose(host.to(at::kDouble), expected.to(at::kDouble), relative,
                      1e-5 * std::sqrt(static_cast<double>(k)));
}

using Move = std::function<at::Tensor(const at::Tensor&)>;

class Linear : public OpsTest {
 public:
  void SetUp() override {
    OpsTest::SetUp();
    linear_choices().restart("");
    config().packed_bytes = int64_t{256} << 20;
  }
  void TearDown() override {
    force_linear_implementation(std::nullopt);
    config().fusion = true;
    config().tiles = true;
    config().packed_bytes = int64_t{256} << 20;
    linear_choices().restart("");
    OpsTest::TearDown();
  }

  static int64_t runs_of(Implementation implementation) {
    return linear_counts().runs[static_cast<int>(implementation)];
  }
  // Of any but the stock kernel.
  static int64_t own_runs() {
    int64_t total = 0;
    for (const int64_t runs : linear_counts().runs) total += runs;
    return total;
  }
  // Runs `call`, which records one product, and returns how often an own implementation ran.
  template <typename Call>
  static int64_t own_runs_in(const Call& call) {
    const int64_t before = own_runs();
    const at::Tensor result = call();
    flush_all(SyncReason::kFlush);
    return own_runs() - before;
  }
  static at::Tensor product(const at::Tensor& x, const at::Tensor& w) { return at::mm(x, w.t()); }
  static at::Tensor settled(at::Tensor tensor) {
    flush_all(SyncReason::kFlush);
    return tensor;
  }
};

TEST_F(Linear, EveryImplementationComputesWhatTheCpuComputes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t m : {1, 3, 8, 40}) {
      const int64_t n = 200, k = 130;
      const at::Tensor x = numbers({m, k}, 1).to(dtype);
      const at::Tensor w = numbers({n, k}, 2).to(dtype);
      const at::Tensor bias = numbers({n}, 3).to(dtype);
      const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w)),
                       bias_there = settled(on_device(bias));
      const at::Tensor columns = settled(on_device(w.t().contiguous()));
      for (const Implementation implementation :
           {Implementation::kStock, Implementation::kMatvec, Implementation::kPanels, Implementation::kTiles,
            Implementation::kPackedPanels, Implementation::kPackedTiles, Implementation::kPackedBlas}) {
        SCOPED_TRACE(std::string(to_string(implementation)) + " " + c10::toString(dtype) + " m=" + std::to_string(m));
        force_linear_implementation(implementation);
        for (int use = 0; use <= kUsesBeforePacking; ++use) {
          settled(product(x_there, w_there));
          settled(at::mm(x_there, columns));
        }
        const bool on_tiles =
            implementation == Implementation::kTiles || implementation == Implementation::kPackedTiles;
        const bool in_panels =
            implementation == Implementation::kPanels || implementation == Implementation::kPackedPanels;
        const Implementation counted = on_tiles    ? Implementation::kTiles
                                       : in_panels ? Implementation::kPanels
                                                   : implementation;
        const int64_t before = runs_of(counted);
        EXPECT_TRUE(close(product(x_there, w_there), at::mm(x, w.t()), k));
        EXPECT_TRUE(close(at::addmm(bias_there, x_there, w_there.t()), at::addmm(bias, x, w.t()), k));
        EXPECT_TRUE(close(at::bmm(x_there.unsqueeze(0), w_there.t().unsqueeze(0)),
                          at::bmm(x.unsqueeze(0), w.t().unsqueeze(0)), k));
        EXPECT_TRUE(close(at::mm(x_there, columns), at::mm(x, w.t()), k));
        const int64_t expected = implementation == Implementation::kMatvec ? (m <= 8 ? 4 : 0)
                                 : in_panels && backend::has_panels()      ? 4
                                 : on_tiles && backend::has_tiles()        ? (dtype == at::kHalf ? 0 : 4)
                                 : implementation == Implementation::kPackedBlas && has_packed_sgemm()
                                     ? (dtype == at::kFloat ? 4 : 0)
                                     : 0;
        EXPECT_EQ(runs_of(counted) - before, expected);
      }
    }
  }
}

TEST_F(Linear, WithTilesOffTheTileUnitIsNotUsed) {
  const at::Tensor x = settled(on_device(numbers({128, 256}, 1))), w = settled(on_device(numbers({512, 256}, 2)));
  for (const Implementation implementation : {Implementation::kTiles, Implementation::kPackedTiles}) {
    force_linear_implementation(implementation);
    for (const bool on : {true, false}) {
      config().tiles = on;
      for (int use = 0; use < kUsesBeforePacking; ++use) settled(product(x, w));
      EXPECT_EQ(own_runs_in([&] { return product(x, w); }), on && backend::has_tiles() ? 1 : 0);
    }
  }
}

TEST_F(Linear, WhatIsMeasuredWithTilesOffIsNotTakenWithTilesOn) {
  if (!backend::has_tiles()) GTEST_SKIP() << "this processor has no tile unit";
  const at::Tensor x = settled(on_device(numbers({128, 256}, 1))), w = settled(on_device(numbers({512, 256}, 2)));
  LinearShape shape{backend::Element::kFloat32, false, false, false, false, 128, 512, 256, at::get_num_threads()};
  linear_choices().learn(shape, {Implementation::kStock, Implementation::kStock});
  shape.tiles = true;
  linear_choices().learn(shape, {Implementation::kTiles, Implementation::kStock});
  for (const bool on : {false, true}) {
    config().tiles = on;
    EXPECT_EQ(own_runs_in([&] { return product(x, w); }), on ? 1 : 0);
  }
}

TEST_F(Linear, AWeightThatTilesCannotHaveIsMultipliedAsTheCpuDoes) {
  at::Tensor weight = numbers({512, 256}, 2);
  weight.mutable_data_ptr<float>()[3 * 256 + 4] = std::numeric_limits<float>::infinity();
  const at::Tensor x = numbers({128, 256}, 1);
  const at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(weight));
  force_linear_implementation(Implementation::kPackedTiles);
  for (int use = 0; use <= kUsesBeforePacking; ++use) {
    EXPECT_TRUE(at::allclose(product(x_there, w_there).cpu(), at::mm(x, weight.t()), 1e-5, 1e-4));
  }
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

TEST_F(Linear, TheGradientOfAWeightIsAProductToo) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = numbers({300, 200}, 1).to(dtype), gradient = numbers({300, 130}, 2).to(dtype);
    const at::Tensor x_there = settled(on_device(x)), gradient_there = settled(on_device(gradient));
    for (const auto& [implementation, there] : {std::pair(Implementation::kTiles, backend::has_tiles()),
                                                std::pair(Implementation::kPanels, backend::has_panels())}) {
      force_linear_implementation(implementation);
      const int64_t before = runs_of(implementation);
      EXPECT_TRUE(close(at::mm(gradient_there.t(), x_there), at::mm(gradient.t(), x), 300));
      EXPECT_EQ(runs_of(implementation) - before, there ? 1 : 0);
    }
    force_linear_implementation(Implementation::kMatvec);
    EXPECT_EQ(own_runs_in([&] { return at::mm(gradient_there.narrow(1, 0, 4).t(), x_there); }), 0);
  }
}

TEST_F(Linear, OperandsMayBeWindowsOfLargerTensors) {
  const at::Tensor x = numbers({4, 300}, 1);
  const at::Tensor w = numbers({150, 400}, 2);
  const at::Tensor bias = numbers({3, 150}, 3);
  const at::Tensor x_there = on_device(x), w_there = on_device(w), bias_there = on_device(bias);
  force_linear_implementation(Implementation::kMatvec);
  const auto call = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return at::addmm(c.select(0, 1), a.narrow(1, 7, 200), b.narrow(1, 30, 200).t());
  };
  const int64_t before = own_runs();
  EXPECT_TRUE(close(call(x_there, w_there, bias_there), call(x, w, bias), 200));
  EXPECT_EQ(own_runs() - before, 1);
}

TEST_F(Linear, WithFusionOffTheStockKernelRuns) {
  config().fusion = false;
  force_linear_implementation(Implementation::kMatvec);
  const at::Tensor x = numbers({2, 256}, 1), w = numbers({512, 256}, 2), bias = numbers({512}, 3);
  const int64_t before = own_runs();
  expect_same(product(on_device(x), on_device(w)), at::mm(x, w.t()));
  expect_same(at::addmm(on_device(bias), on_device(x), on_device(w).t()), at::addmm(bias, x, w.t()));
  EXPECT_EQ(own_runs(), before);
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

TEST_F(Linear, SmallProductsHaveEagersBits) {
  const int64_t before = linear_counts().stock_calls;
  for (const int64_t m : {1, 2, 7, 8, 31, 100}) {
    for (const int64_t n : {1, 2, 5, 16, 33, 64}) {
      for (const int64_t k : {1, 3, 8, 40, 100}) {
        const at::Tensor x = numbers({m, k}, 1), weight = numbers({n, k}, 2), bias = numbers({n}, 3);
        const at::Tensor rows = numbers({m, n}, 4), wide = numbers({m, k + 3}, 5);
        const auto expect_same = [&](const char* what, const std::function<at::Tensor(const Move&)>& product) {
          const at::Tensor expected = product([](const at::Tensor& tensor) { return tensor; });
          for (int i = 0; i < 2; ++i) {
            const at::Tensor actual = product([](const at::Tensor& tensor) { return on_device(tensor); });
            EXPECT_TRUE(at::equal(actual.cpu(), expected)) << what << ": " << m << " x " << n << " x " << k;
          }
        };
        expect_same("addmm", [&](const Move& to) { return at::addmm(to(bias), to(x), to(weight).t()); });
        expect_same("mm", [&](const Move& to) { return at::mm(to(x), to(weight).t()); });
        expect_same("columns", [&](const Move& to) { return at::addmm(to(bias), to(x), to(weight.t().contiguous())); });
        expect_same("x transposed", [&](const Move& to) { return at::mm(to(x.t().contiguous()).t(), to(weight).t()); });
        expect_same("a row", [&](const Move& to) { return at::addmm(to(bias.view({1, n})), to(x), to(weight).t()); });
        expect_same("a matrix", [&](const Move& to) { return at::addmm(to(rows), to(x), to(weight).t()); });
        expect_same("gaps",
                    [&](const Move& to) { return at::addmm(to(bias), to(wide).narrow(1, 1, k), to(weight).t()); });
        expect_same("numbers", [&](const Move& to) { return at::addmm(to(bias), to(x), to(weight).t(), 0.5, 2); });
      }
    }
  }
  EXPECT_GT(linear_counts().stock_calls - before, 1000);
}

// Strides over one row or column may be any number, also one that BLAS has no type for.
TEST_F(Linear, SmallProductsOfOneRowMayHaveAnyStrides) {
  constexpr int64_t kFar = int64_t{1} << 32;
  const at::Tensor x = numbers({8}, 1), w = numbers({8, 4}, 2), column = numbers({5, 1}, 3), row = numbers({4}, 4);
  const at::Tensor there = on_device(x), w_there = on_device(w), row_there = on_device(row);
  const int64_t before = linear_counts().stock_calls;
  for (int i = 0; i < 2; ++i) {
    expect_same(at::mm(there.as_strided({1, 8}, {kFar, 1}), w_there), at::mm(x.view({1, 8}), w));
    expect_same(at::mm(on_device(column), row_there.as_strided({1, 4}, {kFar, 1})), at::mm(column, row.view({1, 4})));
  }
  EXPECT_EQ(linear_counts().stock_calls - before, 4);
}

TEST_F(Linear, WhatIsUnusualGoesToTheStockKernel) {
  force_linear_implementation(Implementation::kMatvec);
  const at::Tensor x = on_device(numbers({2, 256}, 1)), w = on_device(numbers({512, 256}, 2));
  const at::Tensor bias = on_device(numbers({2, 512}, 3));
  EXPECT_EQ(own_runs_in([&] { return at::mm(x, w.t()); }), 1);
  EXPECT_EQ(own_runs_in([&] { return at::addmm(bias.select(0, 0), x, w.t(), 1, 2); }), 0);
  EXPECT_EQ(own_runs_in([&] { return at::addmm(bias.select(0, 0), x, w.t(), 0.5, 1); }), 0);
  EXPECT_EQ(own_runs_in([&] { return at::addmm(bias, x, w.t()); }), 0);
  EXPECT_EQ(own_runs_in([&] { return at::mm(x.to(at::kDouble), w.to(at::kDouble).t()); }), 0);
  EXPECT_EQ(own_runs_in([&] { return at::mm(x.narrow(1, 0, 32), w.narrow(1, 0, 32).t()); }), 1);
  force_linear_implementation(std::nullopt);
  EXPECT_EQ(own_runs_in([&] { return at::mm(x.narrow(1, 0, 16), w.narrow(1, 0, 16).t()); }), 0);  // too small
}

TEST_F(Linear, AShapeIsMeasuredOnce) {
  const at::Tensor x = on_device(numbers({2, 256}, 1)), w = on_device(numbers({512, 256}, 2));
  const int64_t before = linear_counts().measurements;
  settled(product(x, w));
  EXPECT_EQ(linear_counts().measurements, before + 1);
  // On a busy machine the result is a guess; this one is not.
  linear_choices().learn(
      {backend::Element::kFloat32, false, false, false, backend::has_tiles(), 2, 512, 256, at::get_num_threads()}, {});
  settled(product(x, w));
  EXPECT_EQ(linear_counts().measurements, before + 1);
}

TEST_F(Linear, PackingIsMeasuredAfterAWeightWasUsedOften) {
  const at::Tensor x = settled(on_device(numbers({32, 256}, 1))), w = settled(on_device(numbers({512, 256}, 2)));
  const int64_t before = linear_counts().measurements;
  for (int use = 1; use < kUsesBeforePacking; ++use) settled(product(x, w));
  EXPECT_EQ(linear_counts().measurements, before);  // float32 of 32 rows has one plain implementation
  settled(product(x, w));
  EXPECT_EQ(linear_counts().measurements, before + 1);
}

// ---- packed weights -----------------------------------------------------------------------------------------------

class PackedWeight : public Linear, public ::testing::WithParamInterface<Implementation> {
 public:
  void SetUp() override {
    Linear::SetUp();
    if (in_panels() ? !backend::has_panels() : !has_packed_sgemm()) {
      GTEST_SKIP() << "this processor or torch has no kernel with such a weight";
    }
    force_linear_implementation(GetParam());
    pack();
  }
  static bool in_panels() { return GetParam() == Implementation::kPackedPanels; }
  static int64_t runs() { return runs_of(in_panels() ? Implementation::kPanels : GetParam()); }
  // MKL adds some pages, more of them on AMD's processors, and reserves far more than that.
  static bool one_is_packed() {
    constexpr int64_t kOwnBytes = 512 * 256 * 4;
    const int64_t more = linear_counts().packed_bytes - kOwnBytes;
    return in_panels() ? more == 0 : more >= 0 && more <= kOwnBytes / 2;
  }
  // Uses the weight until it is packed.
  void pack() {
    for (int use = 0; use < kUsesBeforePacking; ++use) settled(product(x_there, w_there));
    ASSERT_TRUE(one_is_packed());
    ASSERT_TRUE(close(product(x_there, w_there), product(x, w), 256));
  }
  void expect_dropped_and_right(const at::Tensor& new_weight) {
    EXPECT_EQ(linear_counts().packed_bytes, 0);
    EXPECT_TRUE(close(product(x_there, w_there), product(x, new_weight), 256));
    pack_again(new_weight);
  }
  void pack_again(const at::Tensor& new_weight) {
    for (int use = 0; use < kUsesBeforePacking; ++use) settled(product(x_there, w_there));
    EXPECT_TRUE(one_is_packed());
    EXPECT_TRUE(close(product(x_there, w_there), product(x, new_weight), 256));
  }
  const at::Tensor x = numbers({4, 256}, 1), w = numbers({512, 256}, 2);
  at::Tensor x_there = settled(on_device(x)), w_there = settled(on_device(w));
};

TEST_P(PackedWeight, IsDroppedByAnOperatorThatWritesTheWeight) {
  w_there.mul_(2);
  flush_all(SyncReason::kFlush);
  expect_dropped_and_right(at::mul(w, 2));
}

TEST_P(PackedWeight, IsDroppedByACopyFromTheHost) {
  const at::Tensor other = numbers({512, 256}, 9);
  w_there.copy_(other);
  flush_all(SyncReason::kFlush);
  expect_dropped_and_right(other);
}

TEST_P(PackedWeight, IsDroppedByAWriteThroughAHostAlias) {
  host_alias(w_there, SyncReason::kNotRecordable, true).mul_(3);
  expect_dropped_and_right(at::mul(w, 3));
}

TEST_P(PackedWeight, IsNotUsedInAGraphThatWritesTheWeight) {
  const int64_t before = runs();
  const at::Tensor first = product(x_there, w_there);
  w_there.mul_(2);
  const at::Tensor second = product(x_there, w_there);
  flush_all(SyncReason::kFlush);
  EXPECT_EQ(runs(), before);
  EXPECT_TRUE(close(first, product(x, w), 256));
  EXPECT_TRUE(close(second, product(x, at::mul(w, 2)), 256));
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

TEST_P(PackedWeight, IsNeverMadeOfBytesThatOthersMayWrite) {
  const at::Tensor exported = host_alias(w_there, SyncReason::kLeaveDispatcher, true);
  for (int use = 0; use <= kUsesBeforePacking; ++use) settled(product(x_there, w_there));
  EXPECT_EQ(linear_counts().packed_bytes, 0);
  exported.mul_(5);
  EXPECT_TRUE(close(product(x_there, w_there), product(x, at::mul(w, 5)), 256));
}

TEST_P(PackedWeight, DiesWithTheWeight) {
  w_there = at::Tensor();
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

TEST_P(PackedWeight, TakesNoMoreMemoryThanAllowed) {
  config().packed_bytes = 512 * 256 * 4;
  const at::Tensor other = settled(on_device(numbers({512, 256}, 9)));
  const int64_t before = runs();
  for (int use = 0; use <= kUsesBeforePacking; ++use) settled(product(x_there, other));
  EXPECT_EQ(runs(), before);
  EXPECT_TRUE(one_is_packed());
}

INSTANTIATE_TEST_SUITE_P(Linear, PackedWeight,
                         ::testing::Values(Implementation::kPackedPanels, Implementation::kPackedBlas),
                         [](const auto& one) { return to_string(one.param); });

// ---- MKL's packed weight ------------------------------------------------------------------------------------------

class PackedBlas : public Linear {
 public:
  void SetUp() override {
    Linear::SetUp();
    if (!has_packed_sgemm()) GTEST_SKIP() << "torch is not linked with MKL";
    force_linear_implementation(Implementation::kPackedBlas);
  }
  // What `call` returns, and whether it was one run of the implementation.
  template <typename Call>
  static void expect_one_run(const Call& call, const at::Tensor& expected) {
    const int64_t before = runs_of(Implementation::kPackedBlas);
    EXPECT_TRUE(close(call(), expected, kDepth));
    EXPECT_EQ(runs_of(Implementation::kPackedBlas) - before, 1);
  }
  // The weight is packed by the first product with it.
  static at::Tensor used(const at::Tensor& w) {
    const at::Tensor there = settled(on_device(w)), x = settled(on_device(numbers({3, kDepth}, 5)));
    for (int use = 0; use < kUsesBeforePacking; ++use) settled(at::mm(x, w.size(0) == kDepth ? there : there.t()));
    EXPECT_GT(linear_counts().packed_bytes, 0);
    return there;
  }
  static constexpr int64_t kDepth = 390, kOutputs = 310;  // no multiples of a block
  const at::Tensor w = numbers({kOutputs, kDepth}, 2), bias = numbers({kOutputs}, 3);
};

TEST_F(PackedBlas, OnePackedWeightServesAnyNumberOfRows) {
  const at::Tensor rows = used(w), columns = used(w.t().contiguous()), bias_there = settled(on_device(bias));
  const int64_t packed = linear_counts().packed_bytes;
  for (const int64_t m : {1, 7, 64, 197, 1000, 2}) {
    SCOPED_TRACE(m);
    const at::Tensor x = numbers({m, kDepth}, 1), x_there = settled(on_device(x));
    const at::Tensor turned_there = settled(on_device(x.t().contiguous()));
    const at::Tensor plain = at::mm(x, w.t()), with_bias = at::addmm(bias, x, w.t());
    expect_one_run([&] { return at::mm(x_there, rows.t()); }, plain);
    expect_one_run([&] { return at::mm(x_there, columns); }, plain);
    expect_one_run([&] { return at::mm(turned_there.t(), rows.t()); }, plain);
    expect_one_run([&] { return at::mm(turned_there.t(), columns); }, plain);
    expect_one_run([&] { return at::addmm(bias_there, x_there, rows.t()); }, with_bias);
    expect_one_run([&] { return at::addmm(bias_there, turned_there.t(), columns); }, with_bias);
  }
  EXPECT_EQ(linear_counts().packed_bytes, packed);
}

TEST_F(PackedBlas, OperandsMayBeWindowsOfLargerTensors) {
  const at::Tensor weight = used(w), bias_there = settled(on_device(bias));
  const at::Tensor x = numbers({70, kDepth + 9}, 1), x_there = settled(on_device(x));
  expect_one_run([&] { return at::addmm(bias_there, x_there.narrow(1, 4, kDepth), weight.t()); },
                 at::addmm(bias, x.narrow(1, 4, kDepth), w.t()));
  // A single row whose stride is less than its length.
  const at::Tensor row = x_there.as_strided({1, kDepth}, {1, 1}, 4);
  expect_one_run([&] { return at::mm(row, weight.t()); }, at::mm(x.narrow(0, 0, 1).narrow(1, 4, kDepth), w.t()));
  // A window of a weight is another weight.
  const int64_t packed = linear_counts().packed_bytes;
  const at::Tensor some = weight.narrow(0, 20, 200);
  settled(at::mm(x_there.narrow(1, 4, kDepth), some.t()));
  EXPECT_GT(linear_counts().packed_bytes, packed);
  expect_one_run([&] { return at::mm(row, some.t()); },
                 at::mm(x.narrow(0, 0, 1).narrow(1, 4, kDepth), w.narrow(0, 20, 200).t()));
}

TEST_F(PackedBlas, ResultsMayHaveGapsBetweenTheirRowsAndValuesToAddTo) {
  for (const int64_t m : {1, 70}) {
    for (const bool accumulate : {false, true}) {
      const at::Tensor x = numbers({m, kDepth + 3}, 1), wide = at::full({m, kOutputs + 5}, 7.0F);
      const backend::Gemm call{.b_transposed = true,
                               .accumulate = accumulate,
                               .m = m,
                               .n = kOutputs,
                               .k = kDepth,
                               .a = x.const_data_ptr<float>(),
                               .lda = kDepth + 3,
                               .b = w.const_data_ptr<float>(),
                               .ldb = kDepth,
                               .c = wide.mutable_data_ptr<float>() + 2,
                               .ldc = kOutputs + 5};
      sgemm_packed(call, packed_b(call).const_data_ptr());
      const at::Tensor sums = at::mm(x.narrow(1, 0, kDepth), w.t());
      EXPECT_TRUE(close(wide.narrow(1, 2, kOutputs), accumulate ? at::add(sums, 7) : sums, kDepth));
      EXPECT_TRUE(at::equal(wide.narrow(1, 0, 2), at::full({m, 2}, 7.0F)));
      EXPECT_TRUE(at::equal(wide.narrow(1, kOutputs + 2, 3), at::full({m, 3}, 7.0F)));
    }
  }
}

// Memory that a plan uses again may hold anything.
TEST_F(PackedBlas, FormerBytesOfAResultDoNotCount) {
  for (const int64_t m : {1, 7, 64, 197}) {
    const at::Tensor x = numbers({m, kDepth}, 1);
    const at::Tensor y = at::full({m, kOutputs}, std::numeric_limits<float>::quiet_NaN());
    const backend::Gemm call{.b_transposed = true,
                             .m = m,
                             .n = kOutputs,
                             .k = kDepth,
                             .a = x.const_data_ptr<float>(),
                             .lda = kDepth,
                             .b = w.const_data_ptr<float>(),
                             .ldb = kDepth,
                             .c = y.mutable_data_ptr<float>(),
                             .ldc = kOutputs};
    sgemm_packed(call, packed_b(call).const_data_ptr());
    EXPECT_TRUE(close(y, at::mm(x, w.t()), kDepth));
  }
}

TEST_F(PackedBlas, AnInfinityInTheWeightStaysWhereItIs) {
  at::Tensor infinite = w.clone();
  infinite.mutable_data_ptr<float>()[3 * kDepth + 4] = std::numeric_limits<float>::infinity();
  const at::Tensor x = numbers({64, kDepth}, 1), x_there = settled(on_device(x)), there = used(infinite);
  expect_one_run([&] { return at::mm(x_there, there.t()); }, at::mm(x, infinite.t()));
}

TEST_F(PackedBlas, TheLimitCountsWhatMklMayTouchUntilItIsPacked) {
  const int64_t most = packed_b_space(kOutputs, kDepth);
  for (const int64_t limit : {most - 1, most}) {
    config().packed_bytes = limit;
    const at::Tensor x_there = settled(on_device(numbers({8, kDepth}, 1))), there = settled(on_device(w));
    for (int use = 0; use <= kUsesBeforePacking; ++use) settled(at::mm(x_there, there.t()));
    EXPECT_EQ(linear_counts().packed_bytes > 0, limit == most);
    EXPECT_LT(linear_counts().packed_bytes, most);
  }
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

TEST_F(PackedBlas, OtherDtypesHaveOtherKernels) {
  const at::Tensor x = on_device(numbers({8, kDepth}, 1).to(at::kBFloat16)), there = on_device(w.to(at::kBFloat16));
  for (int use = 0; use <= kUsesBeforePacking; ++use) settled(at::mm(x, there.t()));
  EXPECT_EQ(linear_counts().packed_bytes, 0);
}

TEST_F(PackedBlas, ThreadsShareAPackedWeight) {
  const backend::Gemm weight{
      .b_transposed = true, .n = kOutputs, .k = kDepth, .b = w.const_data_ptr<float>(), .ldb = kDepth};
  const at::Tensor packed = packed_b(weight);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int run = 0; run < 20; ++run) {
        const int64_t m = 1 + (thread * 37 + run * 11) % 150;
        const at::Tensor x = numbers({m, kDepth}, run), y = at::full({m, kOutputs}, 7.0F);
        backend::Gemm call = weight;
        call.m = m;
        call.a = x.const_data_ptr<float>();
        call.lda = kDepth;
        call.c = y.mutable_data_ptr<float>();
        call.ldc = kOutputs;
        sgemm_packed(call, packed.const_data_ptr());
        right += close(y, at::mm(x, w.t()), kDepth) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4 * 20);
}

// So it uses no more threads than it is told, and none of its own in a parallel region.
TEST_F(PackedBlas, StartsNoThreads) {
  const auto threads_now = [] {
    const fs::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const backend::Gemm weight{
      .b_transposed = true, .n = kOutputs, .k = kDepth, .b = w.const_data_ptr<float>(), .ldb = kDepth};
  const at::Tensor packed = packed_b(weight), x = numbers({300, kDepth}, 1), y = at::full({300, kOutputs}, 7.0F);
  const auto run = [&](int64_t first, int64_t last) {
    backend::Gemm call = weight;
    call.m = last - first;
    call.a = x.const_data_ptr<float>() + first * kDepth;
    call.lda = kDepth;
    call.c = y.mutable_data_ptr<float>() + first * kOutputs;
    call.ldc = kOutputs;
    sgemm_packed(call, packed.const_data_ptr());
  };
  const int before = at::get_num_threads();
  // A thread that has not started others yet.
  std::thread([&] {
    at::set_num_threads(1);
    const auto there = threads_now();
    run(0, 300);
    EXPECT_EQ(threads_now(), there);
    at::set_num_threads(2);
    backend::parallel_for(0, 2, 1, [](int64_t, int64_t) {});
    const auto with_pool = threads_now();
    backend::parallel_for(0, 300, 150, [&](int64_t begin, int64_t end) { run(begin, end); });
    EXPECT_EQ(threads_now(), with_pool);
  }).join();
  at::set_num_threads(before);
  EXPECT_TRUE(close(y, at::mm(x, w.t()), kDepth));
}

// ---- what is remembered -------------------------------------------------------------------------------------------

class ChoiceFile : public ::testing::Test {
 public:
  void SetUp() override {
    char name[] = "/tmp/hetero_linear_XXXXXX";
    folder = ::mkdtemp(name);
    path = (folder / "below" / "choices.txt").string();
  }
  void TearDown() override { fs::remove_all(folder); }

  fs::path folder;
  std::string path;
  const LinearShape shape{backend::Element::kBfloat16, false, false, true, true, 3, 3072, 1024, 2};
  const LinearShape large{backend::Element::kFloat32, true, true, false, false, 100, 768, 768, 1};
};

TEST_F(ChoiceFile, IsMeasuredAgainUntilTwoProcessesAgree) {
  const LinearChoice of_shape{Implementation::kMatvec, Implementation::kStock};
  const LinearChoice of_large{Implementation::kStock, Implementation::kPackedTiles};
  for (int process = 0; process < 2; ++process) {
    LinearChoices choices(path);
    EXPECT_EQ(choices.find(shape), std::nullopt);
    choices.learn(shape, {Implementation::kMatvec});
    choices.learn(large, of_large);
    choices.learn(shape, of_shape);  // the same vote, which says more
    EXPECT_EQ(choices.find(shape), of_shape);
    EXPECT_EQ(choices.settled(large), of_large);
  }
  LinearChoices third(path);
  EXPECT_EQ(third.find(shape), of_shape);
  EXPECT_EQ(third.settled(large), of_large);
}

TEST_F(ChoiceFile, OneProcessOnABusyMachineIsOutvoted) {
  const LinearChoice right{Implementation::kMatvec, Implementation::kStock};
  for (const Implementation measured : {Implementation::kStock, Implementation::kMatvec, Implementation::kMatvec}) {
    LinearChoices choices(path);
    EXPECT_EQ(choices.find(shape), std::nullopt);
    choices.learn(shape, {measured, Implementation::kStock});
    EXPECT_EQ(choices.find(shape)->plain, measured);  // what this process has is what it measured
  }
  EXPECT_EQ(LinearChoices(path).find(shape), right);
  LinearChoices guessing(path);
  guessing.learn(shape, {.plain = Implementation::kPanels, .packed = Implementation::kStock, .sure = false});
  EXPECT_EQ(guessing.find(shape), right);
}

TEST_F(ChoiceFile, WhatProcessesNeverAgreeOnIsMeasuredFiveTimes) {
  for (const Implementation measured : {Implementation::kStock, Implementation::kMatvec, Implementation::kPanels,
                                        Implementation::kTiles, Implementation::kPackedPanels}) {
    LinearChoices choices(path);
    EXPECT_EQ(choices.find(shape), std::nullopt);
    choices.learn(shape, {measured, Implementation::kStock});
  }
  EXPECT_EQ(LinearChoices(path).find(shape)->plain, Implementation::kPackedPanels);
}

TEST_F(ChoiceFile, HasANameForEachImplementation) {
  for (int i = 0; i < kLinearImplementations; ++i) {
    const LinearChoice choice{static_cast<Implementation>(i), static_cast<Implementation>(i)};
    LinearShape read_shape{};
    LinearChoice read{};
    ASSERT_TRUE(parse_line(line_of(shape, choice), read_shape, read));
    EXPECT_EQ(read_shape, shape);
    EXPECT_EQ(read, choice);
  }
}

TEST_F(ChoiceFile, WhatIsKnownIsNotWrittenAgain) {
  const backend::CacheFile file(path, LinearShape::kKind, machine_text());
  LinearChoices choices(path);
  for (int i = 0; i < 3; ++i) choices.settle(shape, {Implementation::kMatvec, Implementation::kStock});
  EXPECT_EQ(file.read().value(), line_of(shape, {Implementation::kMatvec, Implementation::kStock}) + '\n');
}

TEST_F(ChoiceFile, LinesThatNoLongerCountAreRemoved) {
  const backend::CacheFile file(path, LinearShape::kKind, machine_text());
  const LinearChoice old{Implementation::kStock, Implementation::kStock},
      latest{Implementation::kMatvec, Implementation::kStock};
  LinearChoices(path).learn(large, old);
  const std::string of_large = line_of(large.rounded(), old) + '\n', of_old = line_of(shape, old) + '\n',
                    of_latest = line_of(shape, latest) + '\n';
  std::string text = of_large;
  for (int i = 0; i < 200; ++i) text += of_old;
  for (int i = 0; i < 3; ++i) text += of_latest;
  ASSERT_TRUE(file.write(text).ok());
  EXPECT_EQ(LinearChoices(path).find(shape), latest);
  EXPECT_EQ(file.read().value(), of_large + of_old + of_old + of_latest + of_latest + of_latest);
}

TEST_F(ChoiceFile, GuessesAreNotWrittenAndAreMeasuredAgain) {
  LinearChoices choices(path);
  choices.learn(shape, {.plain = Implementation::kMatvec, .sure = false});
  int again = 0;
  for (int look = 2; look <= 100; ++look) again += !choices.find(shape).has_value();
  EXPECT_EQ(again, 6);
  EXPECT_EQ(choices.find(shape)->plain, Implementation::kMatvec);
  EXPECT_FALSE(LinearChoices(path).find(shape).has_value());
}

TEST_F(ChoiceFile, LargeProductsOfSimilarSizeShareAChoice) {
  LinearChoices choices("");
  choices.learn(large, {Implementation::kPanels});
  LinearShape similar = large;
  similar.m = 128;
  EXPECT_TRUE(choices.find(similar).has_value());
  similar.m = 129;
  EXPECT_FALSE(choices.find(similar).has_value());
}

TEST_F(ChoiceFile, LinesOfAnotherFormArePassedOver) {
  const backend::CacheFile file(path, LinearShape::kKind, machine_text());
  for (int process = 0; process < 2; ++process) {
    LinearChoices(path).learn(shape, {Implementation::kMatvec});
    ASSERT_TRUE(
        file.write(file.read().value() + "bfloat16 rows plain 1 2\nfloat8 rows plain 1 2 3 4 stock untried\n").ok());
    LinearChoices(path).learn(large, {Implementation::kPackedPanels});
  }
  LinearChoices choices(path);
  EXPECT_TRUE(choices.find(shape).has_value());
  EXPECT_TRUE(choices.find(large).has_value());
}

TEST_F(ChoiceFile, ThatIsDamagedOrOfAnotherMachineIsReplaced) {
  LinearChoices(path).learn(shape, {Implementation::kMatvec});
  std::ofstream(path, std::ios::app) << "bfloat16 rows plain";
  EXPECT_EQ(LinearChoices(path).find(shape), std::nullopt);
  for (int process = 0; process < 2; ++process) LinearChoices(path).learn(large, {Implementation::kPackedPanels});
  EXPECT_TRUE(LinearChoices(path).find(large).has_value());

  ASSERT_TRUE(backend::CacheFile(path, LinearShape::kKind, "another processor").write("").ok());
  EXPECT_EQ(LinearChoices(path).find(large), std::nullopt);
  for (int process = 0; process < 2; ++process) LinearChoices(path).learn(shape, {Implementation::kMatvec});
  EXPECT_TRUE(LinearChoices(path).find(shape).has_value());
}

TEST_F(ChoiceFile, ThatCannotBeWrittenDoesNoHarm) {
  LinearChoices choices("/proc/no/such/folder/choices.txt");
  choices.learn(shape, {Implementation::kMatvec});
  EXPECT_TRUE(choices.find(shape).has_value());
}

}  // namespace
}  // namespace hetero::ops::testing
