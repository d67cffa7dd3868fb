// The fixture of the tests of ComputeGraph, and a graph to test with.
//
// Thread safety: none, one test at a time.

#pragma once

#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>
#include <vector>

#include "ops/program/compute_graph.h"
#include "ops/program/static_call.h"
#include "tests/ops/fixture.h"

namespace hetero::ops::testing {

using Value = ComputeGraph::Value;

class ComputeGraphTest : public OpsTest {
 public:
  // The value of a Result, or a failed test.
  template <typename T>
  static T get(Result<T> result) {
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.status().message());
    return result.ok() ? std::move(result.value()) : T();
  }
  static void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message()); }
  static void expect_error(const Status& status, const std::string& part) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error_class(), ErrorClass::kUsage);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  static at::Tensor execute(ComputeGraph& graph, const Tensors& inputs, at::IntArrayRef sizes) {
    at::Tensor result = at::zeros(sizes);
    std::vector<TensorView> views;
    for (const at::Tensor& input : inputs) views.push_back(view_of(input));
    expect_ok(graph.execute(views, {view_of(result)}));
    return result;
  }
};

// Two linear layers and what is right.
struct Perceptron {
  at::Tensor x = numbers({4, 8});
  at::Tensor w1 = numbers({16, 8}, 2), b1 = numbers({16}, 3);
  at::Tensor w2 = numbers({3, 16}, 4), b2 = numbers({3}, 5);
  ComputeGraph graph;
  Value input, hidden, active, last;

  Perceptron() {
    const auto get = [](Result<Value> value) { return ComputeGraphTest::get(std::move(value)); };
    input = get(graph.input("x", "f32", {4, 8}));
    hidden = get(graph.add("aten::linear",
                           {input, get(graph.constant("w1", view_of(w1))), get(graph.constant("b1", view_of(b1)))}));
    active = get(graph.add("aten::relu", {hidden}));
    last = get(graph.add("aten::linear",
                         {active, get(graph.constant("w2", view_of(w2))), get(graph.constant("b2", view_of(b2)))}));
    ComputeGraphTest::expect_ok(graph.output("y", last));
  }
  at::Tensor expected(const at::Tensor& of) const { return at::linear(at::relu(at::linear(of, w1, b1)), w2, b2); }
};

}  // namespace hetero::ops::testing
