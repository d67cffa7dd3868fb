// Shape rules: what is recorded by a rule looks as the CPU's result does, and what is wrong is
// still refused on its line.

#include <gtest/gtest.h>

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var.h>
#include <ATen/ops/where.h>

#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

using ShapeRules = OpsTest;

// Sizes, strides and dtype of every result, for calls of one kind with growing sizes.
template <typename Call>
void expect_same_look(const Call& call) {
  for (int64_t n = 2; n <= 12; n += 3) {
    const Tensors expected = call(n, [](const at::Tensor& tensor) { return tensor; });
    const Tensors actual = call(n, [](const at::Tensor& tensor) { return on_device(tensor); });
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].sizes(), expected[i].sizes()) << n;
      EXPECT_EQ(actual[i].strides(), expected[i].strides()) << n;
      EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << n;
    }
    expect_same(actual, expected);
  }
}

TEST_F(ShapeRules, PointwiseResultsAreBroadcast) {
  expect_same_look([](int64_t n, auto put) {
    const at::Tensor x = put(numbers({n, 3, 4})), y = put(numbers({3, 1}));
    return Tensors{at::add(x, y),
                   at::mul(x, 2),
                   at::relu(x),
                   at::eq(x, y),
                   at::where(at::eq(x, y), x, y),
                   at::add(x.transpose(0, 2), 1),
                   at::mul(x.transpose(0, 1), y.unsqueeze(1))};
  });
}

TEST_F(ShapeRules, AttentionIsLaidOutAsTheQuery) {
  config().fusion = false;
  expect_same_look([](int64_t n, auto put) {
    const at::Tensor q = put(numbers({2, n, 3, 8}, 1)).transpose(1, 2), k = put(numbers({2, 3, n + 1, 8}, 2)),
                     v = put(numbers({2, 3, n + 1, 8}, 3)), mask = put(numbers({n, 1}));
    const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, false, mask);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        put(numbers({2, 3, n, 8}, 4)), q, k, v, out, logsumexp, 0, false, mask);
    return Tensors{out, logsumexp, dq, dk, dv};
  });
  config().fusion = true;
}

TEST_F(ShapeRules, AttentionOfSeveralHeadsForOneOfKeysIsLaidOutAsTheQuery) {
  config().fusion = false;
  expect_same_look([](int64_t n, auto put) {
    const at::Tensor q = put(numbers({2, n, 4, 8}, 1)).transpose(1, 2), k = put(numbers({2, 2, n + 1, 8}, 2)),
                     v = put(numbers({2, 2, n + 1, 8}, 3));
    const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(put(numbers({2, 4, n, 8}, 4)), q,
                                                                                       k, v, out, logsumexp, 0, false);
    return Tensors{out, logsumexp, dq, dk, dv};
  });
  config().fusion = true;
}

TEST_F(ShapeRules, ProductsAndReductions) {
  expect_same_look([](int64_t n, auto put) {
    const at::Tensor x = put(numbers({n, 4})), w = put(numbers({4, 5})), b = put(numbers({5}));
    const at::Tensor stack = put(numbers({2, n, 4})), other = put(numbers({2, 4, 3}));
    return Tensors{at::mm(x, w),
                   at::addmm(b, x, w),
                   at::bmm(stack, other),
                   at::sum(x),
                   at::sum(x, at::IntArrayRef({1}), true),
                   at::mean(stack, at::IntArrayRef({0, 2})),
                   at::argmax(x, 1),
                   at::var(x, at::IntArrayRef({-1}), at::Scalar(1), true),
                   at::softmax(x, 1),
                   at::cumsum(x, 0),
                   at::sum(stack.transpose(1, 2), at::IntArrayRef({1}))};
  });
}

TEST_F(ShapeRules, ConcatenationEmbeddingAndNorm) {
  expect_same_look([](int64_t n, auto put) {
    const at::Tensor x = put(numbers({n, 4})), y = put(numbers({2, 4}));
    const at::Tensor table = put(numbers({7, 4})), index = put(at::arange(n).fmod(7).reshape({1, n}));
    return Tensors{at::cat({x, y}, 0), at::cat({x, x}, -1), at::embedding(table, index),
                   at::layer_norm(x, {4}, put(numbers({4})), put(numbers({4})))};
  });
}

TEST_F(ShapeRules, Convolutions) {
  config().fusion = false;
  for (const int64_t channels : {1, 4}) {
    for (const bool last : {false, true}) {
      expect_same_look([=](int64_t n, auto put) {
        const auto order = last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
        const at::Tensor x = put(numbers({n, channels, n + 1, 6}).contiguous(order));
        const at::Tensor w = put(numbers({8, channels, 3, 3})),
                         point = put(numbers({8, channels, 1, 1}).contiguous(order));
        const at::Tensor each = put(numbers({channels, 1, 3, 3})), back = put(numbers({channels, 2, 3, 3}));
        return Tensors{at::convolution(x, w, put(numbers({8})), {1}, {1}, {1}, false, {0}, 1),
                       at::convolution(x, w, {}, {2, 1}, {1, 2}, {1, 2}, false, {0, 0}, 1),
                       at::convolution(x, point, {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1),
                       at::convolution(x, each, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, channels),
                       at::convolution(x, back, {}, {2, 2}, {1, 1}, {1, 1}, true, {1, 0}, 1)};
      });
    }
  }
  expect_same_look([](int64_t n, auto put) {
    const at::Tensor line = put(numbers({2, 3, 4 + n})), turned = put(numbers({2, 4 + n, 3})).transpose(1, 2);
    const at::Tensor volume = put(numbers({1, 2, n + 2, 4, 3}));
    const at::Tensor w = put(numbers({5, 3, 3})), cube = put(numbers({3, 2, 3, 3, 3}));
    return Tensors{at::convolution(line, w, {}, {1}, {1}, {1}, false, {0}, 1),
                   at::convolution(turned, w, {}, {1}, {1}, {1}, false, {0}, 1),
                   at::convolution(volume, cube, {}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, false, {0, 0, 0}, 1)};
  });
  config().fusion = true;
}

TEST_F(ShapeRules, GradientsOfConvolutions) {
  config().fusion = false;
  for (const bool last : {false, true}) {
    expect_same_look([=](int64_t n, auto put) {
      const auto order = last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
      const at::Tensor x = put(numbers({n, 4, n + 1, 6}).contiguous(order)), w = put(numbers({8, 4, 3, 3}));
      const at::Tensor gradient = put(numbers({n, 8, n + 1, 6}).contiguous(order));
      const auto backward = [&](std::array<bool, 3> wanted) {
        return at::convolution_backward(gradient, x, w, at::IntArrayRef({8}), {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1,
                                        wanted);
      };
      const auto [dx, dw, db] = backward({true, true, true});
      const auto [no_dx, only_dw, no_db] = backward({false, true, false});
      EXPECT_FALSE(no_dx.defined() || no_db.defined());
      return Tensors{dx, dw, db, only_dw};
    });
  }
  config().fusion = true;
}

TEST_F(ShapeRules, WhatIsWrongIsRefusedAlsoOnceTheRuleIsBelieved) {
  const at::Tensor x = on_device(numbers({4, 3}));
  const auto refused = [](const auto& call) { return !error_of(call).empty(); };
  at::add(x, on_device(numbers({4, 3})));
  EXPECT_TRUE(refused([&] { at::add(x, on_device(numbers({5, 3}))); }));
  at::mm(x, on_device(numbers({3, 2})));
  EXPECT_TRUE(refused([&] { at::mm(x, on_device(numbers({4, 2}))); }));
  at::Tensor written = on_device(numbers({4, 3}));
  written.add_(x);
  EXPECT_TRUE(refused([&] { on_device(numbers({1, 3})).add_(x); }));
  at::cat({x, x}, 0);
  EXPECT_TRUE(refused([&] { at::cat({x, on_device(numbers({4, 2}))}, 0); }));
  at::layer_norm(x, {3}, on_device(numbers({3})));
  EXPECT_TRUE(refused([&] { at::layer_norm(x, {3}, on_device(numbers({2}))); }));
  EXPECT_TRUE(refused([&] { at::layer_norm(x, {4}); }));
  at::addmm(on_device(numbers({2})), x, on_device(numbers({3, 2})));
  EXPECT_TRUE(refused([&] { at::addmm(on_device(numbers({4})), x, on_device(numbers({3, 2}))); }));
  expect_same(at::add(x, 1), at::add(numbers({4, 3}), 1));
}

TEST_F(ShapeRules, ABelievedRuleAsksNoKernel) {
  at::relu(on_device(numbers({4, 3, 2})));
  mark();
  const at::Tensor wide = at::relu(on_device(numbers({64, 512, 33})));  // too large for a probe, and not run either
  EXPECT_EQ(seen().misses, 1);
  EXPECT_EQ(seen().straight, 0);
  EXPECT_TRUE(seen().flushes.empty());
  expect_same(wide, at::relu(numbers({64, 512, 33})));

  const auto convolve = [](const at::Tensor& x, const at::Tensor& w) {
    return at::convolution(x, w, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1);
  };
  const at::Tensor weight = on_device(numbers({2, 3, 3, 3}));
  convolve(on_device(numbers({2, 3, 8, 8})), weight);
  mark();
  const at::Tensor image = convolve(on_device(numbers({4, 3, 256, 256})), weight);
  EXPECT_EQ(seen().misses, 1);
  EXPECT_EQ(seen().straight, 0);
  EXPECT_TRUE(seen().flushes.empty());
  EXPECT_EQ(image.sizes(), at::IntArrayRef({4, 2, 256, 256}));
  EXPECT_TRUE(!error_of([&] { convolve(on_device(numbers({2, 4, 8, 8})), weight); }).empty());
}

}  // namespace
}  // namespace hetero::ops::testing
