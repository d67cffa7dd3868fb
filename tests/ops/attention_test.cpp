// Attention: our kernels run where they can, give the CPU's values within PyTorch's tolerances, and
// fit together with the stock ones.

#include "ops/kernels/attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

struct Inputs {
  at::Tensor q, k, v, mask = {};
  bool causal = false;
  std::optional<double> scale = std::nullopt;
  double dropout = 0;

  Inputs there() const {
    Inputs moved = *this;
    for (at::Tensor* tensor : {&moved.q, &moved.k, &moved.v, &moved.mask}) {
      if (tensor->defined()) *tensor = on_device(*tensor);
    }
    return moved;
  }
  std::optional<at::Tensor> mask_or_none() const {
    return mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt;
  }
};

using Forward = std::tuple<at::Tensor, at::Tensor>;
Forward forward(const Inputs& in) {
  return at::_scaled_dot_product_flash_attention_for_cpu(in.q, in.k, in.v, in.dropout, in.causal, in.mask_or_none(),
                                                         in.scale);
}
Tensors backward(const Inputs& in, const at::Tensor& grad, const Forward& results) {
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, in.q, in.k, in.v, std::get<0>(results), std::get<1>(results), in.dropout, in.causal, in.mask_or_none(),
      in.scale);
  return {dq, dk, dv};
}

// [batches, heads, rows, size] as a model's projections give it.
at::Tensor projected(int64_t batches, int64_t heads, int64_t rows, int64_t size, uint64_t seed) {
  return numbers({batches, rows, heads * size}, seed).view({batches, rows, heads, size}).transpose(1, 2);
}

Inputs inputs(int64_t batches, int64_t heads, int64_t queries, int64_t keys, int64_t size, int64_t kv_heads = 0) {
  if (kv_heads == 0) kv_heads = heads;
  return {.q = projected(batches, heads, queries, size, 1),
          .k = projected(batches, kv_heads, keys, size, 2),
          .v = projected(batches, kv_heads, keys, size, 3)};
}

// The numbers, of which the large ones are -inf.
at::Tensor masked(const at::Tensor& values) {
  return values.masked_fill(at::gt(values, 0.4), -std::numeric_limits<double>::infinity());
}

float largest(const at::Tensor& values) { return at::max(at::abs(values)).item().toFloat(); }

// PyTorch's default tolerances, and the CPU's layout.
void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor host = actual.cpu();
  ASSERT_EQ(host.scalar_type(), expected.scalar_type());
  ASSERT_EQ(host.sizes(), expected.sizes());
  EXPECT_EQ(actual.strides(), expected.strides());
  const double relative = expected.scalar_type() == at::kFloat  ? 1.3e-6
                          : expected.scalar_type() == at::kHalf ? 1e-3
                                                                : 1.6e-2;
  EXPECT_TRUE(at::allclose(host.to(at::kDouble), expected.to(at::kDouble), relative, 1e-5));
}

class Attention : public OpsTest {
 public:
  void TearDown() override {
    config().fusion = true;
    OpsTest::TearDown();
  }
  // How often our kernels run in a forward pass.
  static int64_t runs_in(const Inputs& in) {
    const int64_t before = attention_counts().forward;
    const Forward results = forward(in);
    flush_all(SyncReason::kFlush);
    return attention_counts().forward - before;
  }
};

// Both passes run by our kernels, with the CPU's values.
void expect_cpus_values(const Inputs& here, const at::Tensor& grad) {
  const Inputs there = here.there();
  const AttentionCounts before = attention_counts();
  const Forward expected = forward(here), actual = forward(there);
  const Tensors expected_grads = backward(here, grad, expected);
  const Tensors actual_grads = backward(there, on_device(grad), actual);
  expect_close(std::get<0>(actual), std::get<0>(expected));
  expect_close(std::get<1>(actual), std::get<1>(expected));
  for (size_t i = 0; i < 3; ++i) expect_close(actual_grads[i], expected_grads[i]);
  const AttentionCounts after = attention_counts();
  EXPECT_EQ(after.forward - before.forward, 1);
  EXPECT_EQ(after.backward - before.backward, 1);
}

TEST_F(Attention, ForwardAndBackwardGiveTheCpusValues) {
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{1, 9}, {8, 8}, {33, 129}, {129, 33}}) {
    for (const bool causal : {false, true}) {
      for (const bool with_mask : {false, true}) {
        SCOPED_TRACE(std::to_string(queries) + " x " + std::to_string(keys) + (causal ? " causal" : "") +
                     (with_mask ? " mask" : ""));
        Inputs here = inputs(2, 3, queries, keys, 20);
        here.causal = causal;
        if (with_mask) here.mask = masked(numbers({2, 1, queries, keys}, 4));
        expect_cpus_values(here, projected(2, 3, queries, 20, 5));
      }
    }
  }
}

TEST_F(Attention, SeveralHeadsOfQueriesMayShareOneOfKeys) {
  for (const int64_t kv_heads : {1, 2, 3, 6}) {
    for (const int64_t queries : {1, 5, 40}) {
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(std::to_string(kv_heads) + " heads of keys, " + std::to_string(queries) + " queries" +
                     (causal ? " causal" : ""));
        Inputs here = inputs(2, 6, queries, 50, 20, kv_heads);
        here.causal = causal;
        here.mask = masked(numbers({2, 6, queries, 50}, 4));
        expect_cpus_values(here, projected(2, 6, queries, 20, 5));
      }
    }
  }
}

// ATen rounds weights to two bytes, so both are held against what float32 gives.
TEST_F(Attention, TwoByteFloatsAreNoFurtherFromFloat32ThanTheCpus) {
  const auto furthest = [](const at::Tensor& actual, const at::Tensor& right) {
    return largest(at::sub(actual.cpu().to(at::kFloat), right));
  };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const float one_rounding = dtype == at::kHalf ? 1.0f / 2048 : 1.0f / 256;
    for (const int64_t kv_heads : {1, 4}) {
      for (const int64_t queries : {1, 30}) {
        SCOPED_TRACE(std::to_string(kv_heads) + " heads of keys, " + std::to_string(queries) + " queries");
        Inputs here = inputs(1, 4, queries, 50, 64, kv_heads);
        here.mask = masked(numbers({queries, 50}, 4));
        at::Tensor grad = projected(1, 4, queries, 64, 5).to(dtype);
        for (at::Tensor* tensor : {&here.q, &here.k, &here.v, &here.mask}) *tensor = tensor->to(dtype);
        Inputs wide = here;
        for (at::Tensor* tensor : {&wide.q, &wide.k, &wide.v, &wide.mask}) *tensor = tensor->to(at::kFloat);
        const AttentionCounts before = attention_counts();
        const Inputs there = here.there();
        const Forward right = forward(wide), expected = forward(here), actual = forward(there);
        const Tensors right_grads = backward(wide, grad.to(at::kFloat), right);
        const Tensors expected_grads = backward(here, grad, expected);
        const Tensors actual_grads = backward(there, on_device(grad), actual);
        flush_all(SyncReason::kFlush);
        const auto check = [&](const at::Tensor& ours, const at::Tensor& cpus, const at::Tensor& value) {
          ASSERT_EQ(ours.scalar_type(), cpus.scalar_type());
          ASSERT_EQ(ours.sizes(), cpus.sizes());
          EXPECT_EQ(ours.strides(), cpus.strides());
          const float rounding = one_rounding * largest(value) + 1e-5f;
          EXPECT_LE(furthest(ours, value), furthest(cpus, value) + rounding);
        };
        check(std::get<0>(actual), std::get<0>(expected), std::get<0>(right));
        check(std::get<1>(actual), std::get<1>(expected), std::get<1>(right));
        for (size_t i = 0; i < 3; ++i) check(actual_grads[i], expected_grads[i], right_grads[i]);
        const AttentionCounts after = attention_counts();
        EXPECT_EQ(after.forward - before.forward, 1);
        EXPECT_EQ(after.backward - before.backward, 1);
      }
    }
  }
}

TEST_F(Attention, AnUndefinedMaskIsNone) {
  const Inputs there = inputs(1, 2, 20, 30, 16).there();
  const at::Tensor grad = on_device(projected(1, 2, 20, 16, 5));
  const Forward results = forward(there);
  const Tensors expected = backward(there, grad, results);
  flush_all(SyncReason::kFlush);
  const AttentionCounts before = attention_counts();
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, there.q, there.k, there.v, std::get<0>(results), std::get<1>(results), 0, false, at::Tensor());
  expect_same(Tensors{dq, dk, dv}, Tensors{expected[0].cpu(), expected[1].cpu(), expected[2].cpu()});
  EXPECT_EQ(attention_counts().backward - before.backward, 1);
}

TEST_F(Attention, RowsWithoutKeysAreWhatTheCpuMakesOfThem) {
  Inputs here = inputs(1, 2, 20, 30, 16);
  here.mask = at::zeros({20, 30});
  here.mask.narrow(0, 4, 3).fill_(-std::numeric_limits<double>::infinity());
  const Inputs there = here.there();
  const at::Tensor grad = projected(1, 2, 20, 16, 5);
  const Forward expected = forward(here), actual = forward(there);
  expect_close(std::get<0>(actual), std::get<0>(expected));
  expect_close(std::get<1>(actual), std::get<1>(expected));
  const Tensors expected_grads = backward(here, grad, expected);
  const Tensors actual_grads = backward(there, on_device(grad), actual);
  for (size_t i = 0; i < 3; ++i) expect_close(actual_grads[i], expected_grads[i]);
}

TEST_F(Attention, StockAndOwnPassesFollowEachOther) {
  const Inputs here = inputs(1, 2, 20, 30, 16), there = here.there();
  const at::Tensor grad = projected(1, 2, 20, 16, 5), grad_there = on_device(grad);
  const Tensors expected = backward(here, grad, forward(here));
  for (const bool own_first : {false, true}) {
    const AttentionCounts before = attention_counts();
    config().fusion = own_first;
    const Forward results = forward(there);
    flush_all(SyncReason::kFlush);
    config().fusion = !own_first;
    const Tensors grads = backward(there, grad_there, results);
    flush_all(SyncReason::kFlush);
    for (size_t i = 0; i < 3; ++i) expect_close(grads[i], expected[i]);
    const AttentionCounts after = attention_counts();
    EXPECT_EQ(after.forward - before.forward, own_first ? 1 : 0);
    EXPECT_EQ(after.backward - before.backward, own_first ? 0 : 1);
  }
}

TEST_F(Attention, WithFusionOffTheStockKernelsRun) {
  config().fusion = false;
  const Inputs here = inputs(2, 3, 20, 30, 16), there = here.there();
  const at::Tensor grad = projected(2, 3, 20, 16, 5);
  const AttentionCounts before = attention_counts();
  const Forward expected = forward(here), actual = forward(there);
  expect_same(std::get<0>(actual), std::get<0>(expected));
  expect_same(std::get<1>(actual), std::get<1>(expected));
  expect_same(backward(there, on_device(grad), actual), backward(here, grad, expected));
  EXPECT_EQ(attention_counts().forward, before.forward);
  EXPECT_EQ(attention_counts().backward, before.backward);
}

TEST_F(Attention, WhatIsUnusualGoesToTheStockKernel) {
  const Inputs plain = inputs(2, 3, 20, 20, 16).there();
  EXPECT_EQ(runs_in(plain), 1);
  Inputs other = plain;
  other.scale = 0.3;
  EXPECT_EQ(runs_in(other), 1);
  other = plain;
  other.mask = on_device(numbers({20, 1}, 4));
  EXPECT_EQ(runs_in(other), 1);
  other = plain;
  other.mask = on_device(numbers({20, 40}, 4)).slice(1, 0, 40, 2);
  EXPECT_EQ(runs_in(other), 0);
  other = plain;
  other.q = on_device(numbers({2, 3, 16, 20}, 4)).transpose(2, 3);
  EXPECT_EQ(runs_in(other), 0);
  other = plain;
  for (at::Tensor* tensor : {&other.q, &other.k, &other.v}) *tensor = tensor->to(at::kDouble);
  EXPECT_EQ(runs_in(other), 0);
}

}  // namespace
}  // namespace hetero::ops::testing
