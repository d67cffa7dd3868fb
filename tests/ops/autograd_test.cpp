// Autograd and autocast work on recorded tensors as they are: nothing runs before a value is read.

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <thread>

#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {
namespace {

at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().requires_grad_(); }

using Autograd = OpsTest;

TEST_F(Autograd, ATrainingStepIsRecordedFromForwardToUpdate) {
  const auto step = [](Tensors& t) {
    const at::Tensor weight = leaf(t[2]), bias = leaf(t[3]);
    const at::Tensor loss = at::mse_loss(at::relu(at::linear(t[0], weight, bias)), t[1]);
    loss.backward();
    c10::NoGradGuard no_grad;
    for (const at::Tensor& parameter : {weight, bias}) at::Tensor(parameter).sub_(parameter.grad(), 0.1);
    return Tensors{loss, weight, weight.grad(), bias, bias.grad()};
  };
  const Counts counts = path_of(step, {numbers({5, 4}, 1), numbers({5, 3}, 2), numbers({3, 4}, 3), numbers({3}, 4)});
  EXPECT_TRUE(counts.only_recorded()) << ::testing::PrintToString(counts);
}

TEST_F(Autograd, AGradientOfAGradientIsRecorded) {
  const auto second = [](Tensors& t) {
    const at::Tensor x = leaf(t[0]);
    const at::Tensor y = at::sum(at::tanh(x.mul(x)));
    const Tensors first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    return torch::autograd::grad({at::sum(first[0].mul(t[0]))}, {x});
  };
  const Counts counts = path_of(second, {numbers({6})});
  EXPECT_TRUE(counts.only_recorded()) << ::testing::PrintToString(counts);
}

TEST_F(Autograd, AGradientFlowsThroughWritesToViews) {
  config().fusion = false;  // a fused softmax adds in another order
  const auto gradient = [](Tensors& t) {
    const at::Tensor x = leaf(t[0]);
    at::Tensor y = x.mul(2);
    y.select(0, 1).mul_(x.select(0, 0));
    return torch::autograd::grad({at::sum(at::softmax(y, 1).mul(t[1]))}, {x});
  };
  const Counts counts = path_of(gradient, {numbers({3, 4}, 1), numbers({3, 4}, 2)});
  EXPECT_TRUE(counts.only_recorded()) << ::testing::PrintToString(counts);
}

TEST_F(Autograd, AGradientDeadWithItsTensorsIsNeverComputed) {
  const at::Tensor x = leaf(on_device(numbers({4})));
  torch::autograd::grad({at::sum(at::tanh(x))}, {x});
  mark();
  torch::autograd::grad({at::sum(at::tanh(x))}, {x});
  const int64_t recorded = seen().typed;
  // Autograd's thread lets go of the results a moment after it has handed them over.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  flush_all(SyncReason::kFlush);
  EXPECT_GT(recorded, 1);
  EXPECT_EQ(seen().dead, recorded);
  EXPECT_EQ(seen().kernels, 0);
}

TEST_F(Autograd, AWriteToASavedTensorIsNoticed) {
  const auto stale = [](const at::Tensor& tensor) {
    return error_of([&] {
      at::Tensor x = leaf(tensor);
      at::Tensor y = at::tanh(x);
      const at::Tensor loss = at::sum(y);
      y.mul_(2);
      loss.backward();
      at::sum(y).backward();
    });
  };
  const std::string expected = stale(numbers({4}));
  EXPECT_NE(expected.find("modified by an inplace operation"), std::string::npos);
  EXPECT_NE(stale(on_device(numbers({4}))).find("modified by an inplace operation"), std::string::npos);
}

class Autocast : public OpsTest {
 public:
  template <typename Call>
  static Tensors under_autocast(c10::DeviceType device, const Call& call) {
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::set_autocast_enabled(device, true);
    Tensors results = call();
    at::autocast::set_autocast_enabled(device, false);
    at::autocast::clear_cache();
    return results;
  }
};

TEST_F(Autocast, CastsWhatTheCpuCastsAndRecordsTheCasts) {
  const auto call = [](Tensors& t) {
    return under_autocast(t[0].device().type(), [&] {
      const at::Tensor product = at::matmul(t[0], t[1]);
      return Tensors{product, at::mse_loss(product, t[2].to(product.scalar_type()))};
    });
  };
  const Tensors arguments = {numbers({3, 4}, 1), numbers({4, 5}, 2), numbers({3, 5}, 3)};
  const Counts counts = path_of(call, arguments);
  EXPECT_TRUE(counts.only_recorded()) << ::testing::PrintToString(counts);
  Tensors copies = arguments;
  const Tensors results = call(copies);
  EXPECT_EQ(results[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(results[1].scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace hetero::ops::testing
