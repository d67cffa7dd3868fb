// ComputeGraph: a graph built by operator names gives what eager PyTorch gives, and what does not
// fit is an error on its line, in PyTorch's words.

#include "ops/program/compute_graph.h"

#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <filesystem>

#include "ops/run/sync.h"
#include "ops/settings/config.h"
#include "tests/ops/compute_graph_fixture.h"

namespace hetero::ops::testing {
namespace {

TEST_F(ComputeGraphTest, APerceptronGivesWhatEagerGivesAndRecordsNothing) {
  Perceptron net;
  expect_ok(net.graph.optimize());
  for (uint64_t seed = 10; seed < 13; ++seed) {
    const at::Tensor x = numbers({4, 8}, seed);
    mark();
    const at::Tensor y = execute(net.graph, {x}, {4, 3});
    EXPECT_EQ(seen(), Counts{}) << "the program ran by itself";
    EXPECT_TRUE(at::allclose(y, net.expected(x), 1e-5, 1e-6));
  }
}

TEST_F(ComputeGraphTest, AResultHasItsShapeWhenItIsAdded) {
  Perceptron net;
  EXPECT_EQ(to_string(get(net.graph.look(net.hidden))), "f32[4,16]");
  EXPECT_EQ(to_string(get(net.graph.look(net.last))), "f32[4,3]");
  EXPECT_EQ(pending_nodes(), 0u);
}

TEST_F(ComputeGraphTest, AViewIsNoNodeAndAComposedOperatorIsItsParts) {
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {2, 6}));
  const Value t = get(graph.add("aten::transpose", {x, 0, 1}));
  const Value y = get(graph.add("aten::silu", {t}));
  const Value z = get(graph.add("aten::square", {y}));
  expect_ok(graph.output("z", z));
  expect_ok(graph.optimize());
  EXPECT_EQ(to_string(get(graph.look(t))), "f32[6,2]");
  EXPECT_TRUE(get(graph.cost(t)).parts.empty());
  EXPECT_EQ(get(graph.cost(y)).parts.size(), 1u);
  ASSERT_EQ(get(graph.cost(z)).parts.size(), 1u);
  EXPECT_EQ(get(graph.cost(z)).parts[0].op, "aten::pow.Tensor_Scalar") << "square is composed of it";
}

TEST_F(ComputeGraphTest, AttributesGoByNameAndOverloadsByWhatIsGiven) {
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {3, 5}));
  const Value sum = get(graph.add("aten::add", {x, 2.5}, {{"alpha", 2}}));
  const Value both = get(graph.add("aten::add", {sum, x}));
  const Value soft = get(graph.add("aten::softmax", {both}, {{"dim", -1}, {"dtype", "f64"}}));
  expect_ok(graph.output("soft", soft));
  EXPECT_EQ(to_string(get(graph.look(soft))), "f64[3,5]");
  expect_ok(graph.optimize());
  EXPECT_EQ(get(graph.cost(sum)).parts[0].op, "aten::add.Scalar");
  EXPECT_EQ(get(graph.cost(both)).parts[0].op, "aten::add.Tensor");
  const at::Tensor given = numbers({3, 5});
  at::Tensor result = at::zeros({3, 5}, at::kDouble);
  expect_ok(graph.execute({view_of(given)}, {view_of(result)}));
  EXPECT_TRUE(at::allclose(result, at::softmax(given.add(5.0).add(given), -1, at::kDouble)));
}

TEST_F(ComputeGraphTest, ListsOfTensorsGoInAndComeOut) {
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {2, 6}));
  const Value parts = get(graph.add("aten::chunk", {x, 3, 1}));
  EXPECT_EQ(graph.results(parts), 3u);
  const Value joined = get(graph.add("aten::cat", {std::vector<Value>{parts.result(2), parts.result(0)}, 1}));
  expect_ok(graph.output("joined", joined));
  const at::Tensor given = numbers({2, 6});
  expect_same(execute(graph, {given}, {2, 4}), at::cat({given.slice(1, 4), given.slice(1, 0, 2)}, 1));
}

TEST_F(ComputeGraphTest, WhatDoesNotFitIsRefusedOnItsLineInPyTorchsWords) {
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {4, 8}));
  const Value w = get(graph.input("w", "f32", {7, 3}));
  expect_error(graph.add("aten::mm", {x, w}).status(), error_of([] { at::zeros({4, 8}).mm(at::zeros({7, 3})); }));
  expect_error(graph.add("aten::view", {x, std::vector<int64_t>{5, 5}}).status(), "shape '[5, 5]' is invalid");
  expect_error(graph.add("aten::nonzero", {x}).status(), "nonzero");
  expect_error(graph.add("aten::no_such", {x}).status(), "PyTorch has no operator 'aten::no_such'");
  expect_error(graph.add("aten::mm", {x}).status(), "mat2 is missing: aten::mm(Tensor self, Tensor mat2) -> Tensor");
  expect_error(graph.add("aten::relu", {2.0}).status(), "self is of another kind");
  expect_error(graph.add("aten::relu", {x}, {{"slope", 1}}).status(), "an attribute has a name");
  expect_error(graph.add("aten::relu", {x, x}).status(), "more arguments than the schema takes without a name");
  expect_error(graph.add("aten::relu", {Value{99, 0}}).status(), "not of this graph");
  expect_error(graph.add("aten::relu", {x.result(1)}).status(), "there is no number 1");
  expect_error(graph.input("x", "f32", {1}).status(), "'x' already");
  expect_error(graph.input("q", "f31", {1}).status(), "dtype");
  expect_error(graph.constant("c", TensorView::row_major(nullptr, "f32", {2})).status(), "'c' has no memory");
  expect_error(graph.optimize(), "no outputs");
  // Nothing of that is in the graph, and the device goes on.
  expect_ok(graph.output("y", get(graph.add("aten::relu", {x}))));
  const at::Tensor a = numbers({4, 8}), b = numbers({7, 3}, 2);
  expect_same(execute(graph, {a, b}, {4, 8}), at::relu(a));
  expect_same(at::relu(on_device(a)), at::relu(a));
}

TEST_F(ComputeGraphTest, AWrongCallOfTheProgramIsRefused) {
  Perceptron net;
  expect_error(net.graph.cost(net.last).status(), "call optimize()");
  at::Tensor y = at::zeros({4, 3});
  const at::Tensor wrong = at::zeros({4, 9});
  expect_error(net.graph.execute({}, {view_of(y)}), "1 inputs and 1 outputs, and was given 0 and 1");
  expect_error(net.graph.execute({view_of(wrong)}, {view_of(y)}), "input 'x'");
  EXPECT_TRUE(at::allclose(execute(net.graph, {net.x}, {4, 3}), net.expected(net.x), 1e-5, 1e-6));
}

TEST_F(ComputeGraphTest, CostsAndMemoryAreThoseOfThePlan) {
  Perceptron net;
  expect_ok(net.graph.optimize());
  const ComputeGraph::Cost cost = get(net.graph.cost(net.hidden));
  ASSERT_EQ(cost.parts.size(), 1u);
  EXPECT_EQ(cost.parts[0].op, "aten::addmm");
  EXPECT_EQ(cost.parts[0].device, backend::kCpu);
  EXPECT_EQ(cost.parts[0].reason, graph::Reason::kOnlyDevice);
  EXPECT_EQ(cost.bytes, 4u * 16 * sizeof(float));
  EXPECT_GT(cost.seconds, 0);
  const ComputeGraph::Memory memory = get(net.graph.memory());
  EXPECT_EQ(memory.constants, (16u * 8 + 16 + 3 * 16 + 3) * sizeof(float));
  EXPECT_EQ(memory.inputs, (4u * 8 + 4 * 3) * sizeof(float));
  EXPECT_GE(memory.temporaries, memory.at_least);
  EXPECT_NE(net.graph.describe().find("aten::linear"), std::string::npos);
}

TEST_F(ComputeGraphTest, ANodeRunsWhereItIsAskedTo) {
  set_option("accelerator", "sim");
  {
    Perceptron net;
    expect_ok(net.graph.prefer(net.hidden, graph::Preference::kAccelerator));
    expect_ok(net.graph.prefer(net.last, graph::Preference::kCpu));
    expect_error(net.graph.prefer(net.input, graph::Preference::kCpu), "no operator");
    expect_ok(net.graph.optimize());
    const ComputeGraph::Cost there = get(net.graph.cost(net.hidden)), here = get(net.graph.cost(net.last));
    EXPECT_EQ(there.parts.at(0).device, backend::kAccelerator);
    EXPECT_EQ(there.parts.at(0).reason, graph::Reason::kRequested);
    EXPECT_EQ(here.parts.at(0).device, backend::kCpu);
    EXPECT_EQ(get(net.graph.memory(backend::kAccelerator)).constants, (16u * 8 + 16) * sizeof(float));
    EXPECT_TRUE(at::allclose(execute(net.graph, {net.x}, {4, 3}), net.expected(net.x), 1e-5, 1e-6));
    // Less memory than its weights take: nothing of it can be there.
    net.graph.set_memory_budget(64);
    expect_ok(net.graph.optimize());
    EXPECT_EQ(get(net.graph.cost(net.hidden)).parts.at(0).device, backend::kCpu);
    EXPECT_EQ(get(net.graph.cost(net.hidden)).parts.at(0).reason, graph::Reason::kNoMemory);
    EXPECT_TRUE(at::allclose(execute(net.graph, {net.x}, {4, 3}), net.expected(net.x), 1e-5, 1e-6));
  }
  set_option("accelerator", "none");
}

TEST_F(ComputeGraphTest, WhatIsAddedLaterIsInTheNextProgram) {
  Perceptron net;
  execute(net.graph, {net.x}, {4, 3});
  const Value soft = get(net.graph.add("aten::softmax", {net.last, -1}));
  expect_ok(net.graph.output("soft", soft));
  at::Tensor y = at::zeros({4, 3}), z = at::zeros({4, 3});
  expect_ok(net.graph.execute({view_of(net.x)}, {view_of(y), view_of(z)}));
  EXPECT_TRUE(at::allclose(z, at::softmax(net.expected(net.x), -1), 1e-5, 1e-6));
}

TEST_F(ComputeGraphTest, AConstantThatIsWrittenIsAStateAndAnInputThatIsWrittenIsTheCallers) {
  ComputeGraph graph;
  const at::Tensor start = numbers({3}), step = numbers({3}, 2);
  const Value state = get(graph.constant("state", view_of(start)));
  const Value x = get(graph.input("x", "f32", {3}));
  const Value total = get(graph.add("aten::add_", {state, x}));
  get(graph.add("aten::mul_", {x, 0.5}));
  expect_ok(graph.output("total", total));
  at::Tensor expected = start.clone(), given = step.clone();
  for (int call = 0; call < 3; ++call) {
    expected.add_(given);
    const at::Tensor before = given.clone();
    expect_same(execute(graph, {given}, {3}), expected);
    expect_same(given, before.mul(0.5));
  }
}

TEST_F(ComputeGraphTest, AStateStaysWhenTheGraphIsChanged) {
  ComputeGraph graph;
  const at::Tensor start = numbers({3}), step = numbers({3}, 2);
  const Value state = get(graph.constant("state", view_of(start)));
  const Value total = get(graph.add("aten::add_", {state, get(graph.input("x", "f32", {3}))}));
  expect_ok(graph.output("total", total));
  at::Tensor expected = start.clone().add_(step);
  expect_same(execute(graph, {step}, {3}), expected);
  expect_ok(graph.output("half", get(graph.add("aten::mul", {total, 0.5}))));
  for (int call = 0; call < 2; ++call) {
    expected.add_(step);
    at::Tensor result = at::zeros({3}), half = at::zeros({3});
    expect_ok(graph.execute({view_of(step)}, {view_of(result), view_of(half)}));
    expect_same(result, expected);
    expect_same(half, expected.mul(0.5));
  }
}

TEST_F(ComputeGraphTest, AnErrorOfAKernelIsOneSentence) {
  ComputeGraph graph;
  const at::Tensor table = numbers({5, 2}), wrong = at::full({2}, 9, at::kLong);
  const Value rows = get(graph.input("rows", "i64", {2}));
  const Value found = get(graph.add("aten::embedding", {get(graph.constant("table", view_of(table))), rows}));
  expect_ok(graph.output("found", found));
  at::Tensor result = at::zeros({2, 2});
  const Status status = graph.execute({view_of(wrong)}, {view_of(result)});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error_class(), ErrorClass::kKernel);
  EXPECT_EQ(status.message(), "aten::embedding: index out of range in self");
}

TEST_F(ComputeGraphTest, AFileOfItRunsInAnExecutor) {
  Perceptron net;
  const std::string path = ::testing::TempDir() + "compute_graph_test.hetero";
  expect_ok(net.graph.save(path));
  const auto executor = get(GraphExecutor::Init(path, {}));
  std::filesystem::remove(path);
  ASSERT_NE(executor, nullptr);
  at::Tensor y = at::zeros({4, 3});
  expect_ok(executor->SetInput("x", view_of(net.x)));
  expect_ok(executor->Run());
  expect_ok(executor->GetOutput("y", view_of(y)));
  expect_same(y, execute(net.graph, {net.x}, {4, 3}));
}

TEST_F(ComputeGraphTest, WhatOthersRecordedWhileItIsBuiltHasItsValues) {
  const at::Tensor a = numbers({5});
  const at::Tensor pending = at::relu(on_device(a));
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {5}));
  const Value y = get(graph.add("aten::neg", {x}));
  const at::Tensor later = at::add(pending, on_device(a));
  expect_ok(graph.output("y", y));
  expect_ok(graph.optimize());
  expect_same(later, at::add(at::relu(a), a));
}

// Attention over the words of some texts, with all sizes that depend on how many there are.
struct Encoder {
  static constexpr int64_t kWidth = 12, kHeads = 3;
  at::Tensor weight = numbers({3 * kWidth, kWidth}, 2);
  ComputeGraph graph;
  GraphSize batch = ComputeGraphTest::get(graph.dimension("batch", 1, 64));
  GraphSize words = ComputeGraphTest::get(graph.dimension("words"));

  Encoder() {
    const auto get = [](Result<Value> value) { return ComputeGraphTest::get(std::move(value)); };
    const Value x = get(graph.input("x", "f32", {batch, words, kWidth}));
    const Value all = get(graph.add("aten::linear", {x, get(graph.constant("w", view_of(weight)))}));
    const Value apart = get(graph.add("aten::view", {all, GraphSizes{batch, words, 3, kHeads, kWidth / kHeads}}));
    const Value heads = get(graph.add("aten::permute", {apart, std::vector<int64_t>{2, 0, 3, 1, 4}}));
    std::vector<Value> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(get(graph.add("aten::select.int", {heads, 0, i})));
    const Value mixed = get(graph.add("aten::scaled_dot_product_attention", {parts[0], parts[1], parts[2]}));
    const Value rows = get(graph.add("aten::transpose.int", {mixed, 1, 2}));
    const Value flat = get(graph.add("aten::reshape", {rows, GraphSizes{batch * words, kWidth}}));
    const Value count = get(graph.add("aten::add.Scalar", {flat, batch * words + 2}));
    ComputeGraphTest::expect_ok(graph.output("y", count));
  }

  at::Tensor expected(const at::Tensor& x) const {
    const int64_t b = x.size(0), w = x.size(1);
    const at::Tensor heads = at::linear(x, weight).view({b, w, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads.select(0, 0), heads.select(0, 1), heads.select(0, 2));
    return mixed.transpose(1, 2).reshape({b * w, kWidth}).add(b * w + 2);
  }
};

TEST_F(ComputeGraphTest, AGraphWithDimensionsTakesAllSizesAndRecordsNothing) {
  Encoder encoder;
  expect_ok(encoder.graph.optimize());
  for (const auto& [batch, words] : {std::pair{2, 9}, {1, 4}, {5, 1}, {1, 1}, {64, 3}, {2, 9}}) {
    const at::Tensor x = numbers({batch, words, Encoder::kWidth}, static_cast<uint64_t>(batch * words));
    mark();
    const at::Tensor y = execute(encoder.graph, {x}, {batch * words, Encoder::kWidth});
    EXPECT_EQ(seen(), Counts{}) << "the program ran by itself";
    EXPECT_TRUE(at::allclose(y, encoder.expected(x), 1e-5, 1e-5)) << batch << " x " << words;
  }
}

TEST_F(ComputeGraphTest, SizesThatTheGraphCannotHaveAreErrors) {
  Encoder encoder;
  const auto run = [&](const at::Tensor& x) {
    at::Tensor y = at::zeros({x.size(0) * x.size(1), Encoder::kWidth});
    return encoder.graph.execute({view_of(x)}, {view_of(y)});
  };
  expect_error(run(at::zeros({65, 2, Encoder::kWidth})), "batch");
  expect_error(run(at::zeros({2, 2, Encoder::kWidth + 1})), "x");
  expect_ok(run(at::zeros({3, 2, Encoder::kWidth})));
}

TEST_F(ComputeGraphTest, DimensionsHaveNamesAndBounds) {
  ComputeGraph graph, other;
  const GraphSize batch = get(graph.dimension("batch", 1, 8));
  expect_error(graph.dimension("batch").status(), "already");
  expect_error(graph.dimension("two words").status(), "letters");
  expect_error(graph.dimension("n", 5, 4).status(), "between its bounds");
  expect_error(graph.dimension("n", -1, 4).status(), "between its bounds");
  expect_error(graph.dimension("n", 2, 4, 5).status(), "between its bounds");
  expect_error(other.input("x", "f32", {batch, 2}).status(), "another graph");
  expect_error(graph.input("x", "f32", {batch - 100}).status(), "negative");
  EXPECT_EQ(to_string(get(graph.look(get(graph.input("x", "f32", {batch * 2, 3}))))), "f32[14,3]");
  const GraphSize four = get(graph.dimension("four", 4, 4));
  EXPECT_EQ(to_string(get(graph.look(get(graph.input("z", "f32", {four}))))), "f32[4]");
}

TEST_F(ComputeGraphTest, AGraphThatIsAnotherProgramForOtherSizesIsRefused) {
  ComputeGraph graph;
  const GraphSize n = get(graph.dimension("n"));
  const Value x = get(graph.input("x", "f32", {n, 4}));
  const Value even = get(graph.add("aten::slice.Tensor", {x, 0, 0, nullptr, 2}));
  expect_ok(graph.output("y", get(graph.add("aten::neg", {even}))));
  expect_error(graph.optimize(), "in another way than by sums and products");
  EXPECT_EQ(pending_nodes(), 0u);
}

TEST_F(ComputeGraphTest, AnInputThatIsWrittenIsTheCallersStateOfAnySize) {
  ComputeGraph graph;
  const GraphSize rows = get(graph.dimension("rows", 1, 1000));
  const Value cache = get(graph.input("cache", "f32", {rows, 4}));
  const Value at_row = get(graph.input("row", "i64", {1}));
  const Value fresh = get(graph.input("new", "f32", {1, 4}));
  const Value written = get(graph.add("aten::index_copy_", {cache, 0, at_row, fresh}));
  expect_ok(graph.output("sum", get(graph.add("aten::sum", {written}))));
  for (const int64_t size : {5, 9, 1}) {
    at::Tensor state = numbers({size, 4}, static_cast<uint64_t>(size)), expected = state.clone();
    const at::Tensor row = at::full({1}, size - 1, at::kLong), values = numbers({1, 4}, 77);
    const at::Tensor sum = execute(graph, {state, row, values}, {});
    expected[size - 1].copy_(values[0]);
    EXPECT_TRUE(state.equal(expected)) << size;
    EXPECT_TRUE(at::allclose(sum, expected.sum()));
  }
}

TEST_F(ComputeGraphTest, AConstantWithAnOwnerIsUsedWhereItLies) {
  const auto held = std::make_shared<at::Tensor>(numbers({6, 4}, 3));
  std::weak_ptr<at::Tensor> watched = held;
  const at::Tensor x = numbers({2, 4});
  {
    ComputeGraph graph;
    const Value w = get(graph.constant("w", view_of(*held), held));
    const Value y = get(graph.add("aten::linear", {get(graph.input("x", "f32", {2, 4})), w}));
    expect_ok(graph.output("y", y));
    EXPECT_TRUE(at::allclose(execute(graph, {x}, {2, 6}), at::linear(x, *held)));
    const auto& constants = get(graph.model())->program().constants;
    ASSERT_EQ(constants.size(), 1u);
    EXPECT_EQ(constants[0].bytes.data(), held->data_ptr());
    EXPECT_GT(held.use_count(), 1);
  }
  EXPECT_EQ(held.use_count(), 1) << "the graph has let it go";
}

TEST_F(ComputeGraphTest, AStateOverBorrowedBytesLeavesThemAsTheyAre) {
  const auto held = std::make_shared<at::Tensor>(at::zeros({3}));
  ComputeGraph graph;
  const Value state = get(graph.constant("state", view_of(*held), held));
  expect_ok(graph.output("y", get(graph.add("aten::add_.Scalar", {state, 1}))));
  for (int64_t i = 1; i < 4; ++i) expect_same(execute(graph, {}, {3}), at::full({3}, i, at::kFloat));
  expect_same(*held, at::zeros({3}));
}

TEST_F(ComputeGraphTest, MisalignedOrStridedBytesAreCopied) {
  const auto held = std::make_shared<std::vector<char>>(4 * 9);
  const at::Tensor numbers_of = numbers({8});
  std::memcpy(held->data() + 1, numbers_of.data_ptr(), 4 * 8);
  ComputeGraph graph;
  const Value c = get(graph.constant("c", TensorView::row_major(held->data() + 1, "f32", {8}), held));
  expect_ok(graph.output("y", get(graph.add("aten::mul.Scalar", {c, 2}))));
  EXPECT_EQ(held.use_count(), 1);
  expect_same(execute(graph, {}, {8}), numbers_of.mul(2));
}

TEST_F(ComputeGraphTest, NodesAndEdgesComeInAnyOrder) {
  ComputeGraph graph;
  const at::Tensor x = numbers({3, 4}), w = numbers({5, 4}, 2);
  const Value both = get(graph.add_node("aten::cat", {{"dim", 1}}));
  const Value product = get(graph.add_node("aten::linear"));
  const Value soft = get(graph.add_node("aten::softmax", {{"dim", 0}}));
  expect_ok(graph.add_edge(product, both));
  expect_ok(graph.add_edge(soft, both));
  expect_ok(graph.add_edge(product, soft));
  expect_ok(graph.add_edge(get(graph.constant("w", view_of(w))), product, 0, 1));
  expect_ok(graph.add_edge(get(graph.input("x", "f32", {3, 4})), product));
  EXPECT_EQ(to_string(get(graph.look(both))), "f32[3,10]");
  expect_ok(graph.output("y", both));
  const at::Tensor y = at::linear(x, w);
  EXPECT_TRUE(at::allclose(execute(graph, {x}, {3, 10}), at::cat({y, at::softmax(y, 0)}, 1), 1e-5, 1e-6));
  expect_error(graph.add_edge(both, product, 0, 2), "has its arguments already");
}

TEST_F(ComputeGraphTest, EdgesThatMakeNoGraphAreErrorsThatNameTheNode) {
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {3, 4}));
  const Value a = get(graph.add_node("aten::neg")), b = get(graph.add_node("aten::neg"));
  expect_ok(graph.add_edge(a, b));
  expect_ok(graph.add_edge(b, a));
  expect_error(graph.output("y", b), "circle");
  const Value lonely = get(graph.add_node("aten::mm"));
  expect_ok(graph.add_edge(x, lonely));
  expect_error(graph.look(lonely).status(), "node 3 (aten::mm)");
  expect_ok(graph.add_edge(x, lonely, 0, 1));
  expect_error(graph.look(lonely).status(), "mat1 and mat2 shapes cannot be multiplied");
  expect_error(graph.add_edge(x, Value{99, 0}), "not of this graph");
  const Value split = get(graph.add_node("aten::split.Tensor", {{"split_size", 2}, {"dim", 1}}));
  const Value second = get(graph.add_node("aten::neg"));
  expect_ok(graph.add_edge(split, second, 1));
  expect_ok(graph.add_edge(x, split));
  EXPECT_EQ(to_string(get(graph.look(second))), "f32[3,2]");
}

}  // namespace
}  // namespace hetero::ops::testing
