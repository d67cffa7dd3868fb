// The vocabulary of docs/compute_graph.md: what each name promises, on the CPU and on the simulated
// accelerator.

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "backend/registry/registry.h"
#include "graph/serve/stage_pipeline.h"
#include "ops/settings/config.h"
#include "tests/ops/compute_graph_fixture.h"

namespace hetero::ops::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;
using graph::Home;
using graph::Policy;
using graph::Preference;
using graph::Reason;

// ---- a library of a user

at::Tensor linear_silu(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return at::silu(at::linear(input, weight, bias));
}
at::Tensor linear_silu_meta(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>&) {
  return at::empty({input.size(0), weight.size(0)}, input.options());
}
// Forgets that the weight says how wide the result is.
at::Tensor narrow_meta(const at::Tensor& input, const at::Tensor&, const std::optional<at::Tensor>&) {
  return at::empty_like(input);
}
at::Tensor scaled_relu(const at::Tensor& x, const at::Scalar& by) { return at::relu(at::mul(x, by)); }
at::Tensor scaled_relu_meta(const at::Tensor& x, const at::Scalar&) { return at::empty_like(x); }

TORCH_LIBRARY(hetero_vocabulary, m) {
  m.def("linear_silu(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
  m.def("narrow_silu(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
  m.def("no_meta(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
  m.def("two_tensors(Tensor input, Tensor weight) -> Tensor");
  m.def("writes(Tensor(a!) input, Tensor weight, Tensor? bias) -> Tensor");
  m.def("scaled_relu(Tensor x, Scalar by) -> Tensor");
}
TORCH_LIBRARY_IMPL(hetero_vocabulary, CPU, m) {
  m.impl("linear_silu", &linear_silu);
  m.impl("narrow_silu", &linear_silu);
  m.impl("no_meta", &linear_silu);
  m.impl("scaled_relu", &scaled_relu);
}
TORCH_LIBRARY_IMPL(hetero_vocabulary, Meta, m) {
  m.impl("linear_silu", &linear_silu_meta);
  m.impl("narrow_silu", &narrow_meta);
  m.impl("scaled_relu", &scaled_relu_meta);
}

// ---- graphs

class ComputeGraphVocabulary : public ComputeGraphTest {
 protected:
  static std::string describe(const ComputeGraph& graph) { return graph.describe(); }
};

// The process has the simulated accelerator while it lives. REQUIRES: graphs die before it.
struct Simulated {
  Simulated() { set_option("accelerator", "sim"); }
  ~Simulated() { set_option("accelerator", "none"); }
};

// x, multiplied with one square matrix after the other.
struct Chain {
  static constexpr int64_t kRows = 32;
  static constexpr int64_t kWidth = 64;
  static constexpr uint64_t kMatrix = kWidth * kWidth * sizeof(float);
  static constexpr uint64_t kValue = kRows * kWidth * sizeof(float);
  Tensors weights;
  at::Tensor x = numbers({kRows, kWidth});
  ComputeGraph graph;
  Value input;
  std::vector<Value> products;

  explicit Chain(size_t length) {
    const auto get = [](Result<Value> value) { return ComputeGraphTest::get(std::move(value)); };
    Value at = input = get(graph.input("x", "f32", {kRows, kWidth}));
    for (size_t i = 0; i < length; ++i) {
      weights.push_back(numbers({kWidth, kWidth}, i + 2).mul_(0.1));
      const Value weight = get(graph.constant("w" + std::to_string(i), view_of(weights[i])));
      products.push_back(at = get(graph.add("aten::mm", {at, weight})));
    }
    ComputeGraphTest::expect_ok(graph.output("y", at));
  }
  at::Tensor expected() const {
    at::Tensor at = x;
    for (const at::Tensor& weight : weights) at = at::mm(at, weight);
    return at;
  }
  void expect_right() {
    const at::Tensor y = ComputeGraphTest::execute(graph, {x}, {kRows, kWidth});
    EXPECT_TRUE(at::allclose(y, expected(), 1e-4, 1e-5));
  }
};

// ---- one test for each name

TEST_F(ComputeGraphVocabulary, ComputeGraph) {
  ComputeGraph graph;
  const at::Tensor x = numbers({4, 8}), w = numbers({16, 8}, 2);
  // Handles, or nodes and edges in any order.
  const Value in = get(graph.input("x", "f32", {4, 8}));
  const Value product = get(graph.add("aten::linear", {in, get(graph.constant("w", view_of(w)))}));
  const Value active = get(graph.add_node("aten::relu"));
  expect_ok(graph.add_edge(product, active));
  expect_ok(graph.output("y", active));
  EXPECT_EQ(to_string(get(graph.look(active))), "f32[4,16]");
  expect_ok(graph.optimize());
  mark();
  EXPECT_TRUE(at::allclose(execute(graph, {x}, {4, 16}), at::relu(at::linear(x, w)), 1e-5, 1e-6));
  EXPECT_EQ(seen(), Counts{}) << "the program ran by itself";
}

// Memory of the accelerator, which the host fills and reads by its queues.
class There {
 public:
  explicit There(uint64_t bytes)
      : block_(ComputeGraphTest::get(backend::accelerator()->allocate(bytes))), bytes_(bytes) {}
  TensorView view() const {
    TensorView view = TensorView::row_major(block_.data(), "f32", {Chain::kRows, Chain::kWidth});
    view.device = kAccelerator;
    return view;
  }
  void fill(const at::Tensor& from) { copy(backend::QueueKind::kHostToDevice, block_.data(), from.const_data_ptr()); }
  at::Tensor read() const {
    at::Tensor to = at::zeros({Chain::kRows, Chain::kWidth});
    copy(backend::QueueKind::kDeviceToHost, to.data_ptr(), block_.data());
    return to;
  }

 private:
  void copy(backend::QueueKind kind, void* to, const void* from) const {
    backend::Queue& queue = backend::accelerator()->queue(kind);
    ComputeGraphTest::expect_ok(queue.copy(to, from, bytes_));
    ComputeGraphTest::expect_ok(queue.synchronize());
  }
  backend::Block block_;
  uint64_t bytes_;
};

TEST_F(ComputeGraphVocabulary, ExecuteUsesTensorsOfTheAcceleratorWhereTheyAre) {
  const Simulated simulated;
  Chain chain(3);
  ComputeGraph& graph = chain.graph;
  graph.set_policy(Policy::kAccelerator);
  There x(Chain::kValue), first(Chain::kValue), second(Chain::kValue);
  x.fill(chain.x);
  const auto bytes_copied = [] {
    return backend::accelerator()->counters().bytes_in + backend::accelerator()->counters().bytes_out;
  };
  expect_ok(graph.execute({x.view()}, {first.view()}));
  const int64_t before = bytes_copied();
  expect_ok(graph.execute({x.view()}, {first.view()}));
  EXPECT_EQ(bytes_copied(), before) << "neither the input nor the result is copied";
  EXPECT_TRUE(at::allclose(first.read(), chain.expected(), 1e-4, 1e-5));
  // The next run writes elsewhere.
  const at::Tensor result = first.read();
  x.fill(numbers({Chain::kRows, Chain::kWidth}, 99));
  expect_ok(graph.execute({x.view()}, {second.view()}));
  chain.expect_right();
  expect_same(first.read(), result);
  EXPECT_FALSE(at::allclose(second.read(), result));
  // The plan has it on the other device.
  graph.set_policy(Policy::kCpu);
  expect_error(graph.execute({x.view()}, {first.view()}), "is used on the host");
}

TEST_F(ComputeGraphVocabulary, ExecuteOnAStreamNeedsAGpu) {
  Chain chain(1);
  at::Tensor y = at::zeros({Chain::kRows, Chain::kWidth});
  const auto error = [&] { return chain.graph.execute({view_of(chain.x)}, {view_of(y)}, nullptr); };
  expect_error(error(), "streams of the caller are those of the accelerator 'cuda', and the accelerator is none");
  const Simulated simulated;
  Chain other(1);
  expect_error(other.graph.execute({view_of(other.x)}, {view_of(y)}, nullptr), "and the accelerator is 'sim'");
}

TensorView on_gpu(const at::Tensor& tensor) {
  TensorView view = view_of(tensor);
  view.device = kAccelerator;
  return view;
}

// Runs on a GPU, and on the stand-in for CUDA (tests/cuda_standin).
TEST_F(ComputeGraphVocabulary, ExecuteOnAStream) {
  const std::string refused = error_of([] { set_option("accelerator", "cuda"); });
  if (!refused.empty()) GTEST_SKIP() << refused;
  {
    Chain chain(3);
    ComputeGraph& graph = chain.graph;
    graph.set_policy(Policy::kAccelerator);
    void* const stream = nullptr;  // a cudaStream_t; this is CUDA's default stream
    expect_ok(graph.optimize());
    for (int run = 0; run < 3; ++run) {
      const at::Tensor given = numbers({Chain::kRows, Chain::kWidth}, static_cast<uint64_t>(run) + 50);
      const at::Tensor x = given.to(at::kCUDA), y = at::zeros_like(x);
      const backend::DeviceCounters before = backend::accelerator()->counters();
      expect_ok(graph.execute({on_gpu(x)}, {on_gpu(y)}, stream));
      const backend::DeviceCounters after = backend::accelerator()->counters();
      EXPECT_GE(after.events_waited - before.events_waited, backend::kQueueKinds) << "each queue waits for the stream";
      EXPECT_GE(after.events_recorded - before.events_recorded, backend::kQueueKinds)
          << "and the stream for each queue";
      at::Tensor expected = given;
      for (const at::Tensor& weight : chain.weights) expected = at::mm(expected, weight);
      EXPECT_TRUE(at::allclose(y.cpu(), expected, 1e-3, 1e-4));
      // Also from and to the host.
      at::Tensor host = at::zeros({Chain::kRows, Chain::kWidth});
      expect_ok(graph.execute({view_of(given)}, {view_of(host)}, stream));
      EXPECT_TRUE(at::allclose(host, expected, 1e-3, 1e-4));
    }
  }
  set_option("accelerator", "none");
}

TEST_F(ComputeGraphVocabulary, OperatorNode) {
  const Simulated simulated;
  Perceptron net;
  ComputeGraph& graph = net.graph;
  expect_ok(graph.prefer(net.hidden, Preference::kAccelerator));  // not to be offloaded to the CPU
  expect_ok(graph.prefer(net.last, Preference::kCpu));            // its preferred device
  expect_ok(graph.optimize());
  const ComputeGraph::Cost there = get(graph.cost(net.hidden)), here = get(graph.cost(net.last));
  EXPECT_EQ(there.parts.at(0).device, kAccelerator);
  EXPECT_EQ(here.parts.at(0).device, kCpu);
  EXPECT_EQ(here.parts.at(0).reason, Reason::kRequested);
  EXPECT_EQ(there.bytes, 4u * 16 * sizeof(float)) << "the memory that it requires";
  EXPECT_GT(there.seconds, 0) << "how complex it is";
  EXPECT_TRUE(at::allclose(execute(graph, {net.x}, {4, 3}), net.expected(net.x), 1e-5, 1e-6));
}

TEST_F(ComputeGraphVocabulary, MemoryPlanner) {
  Chain chain(4);
  ComputeGraph& graph = chain.graph;
  expect_ok(graph.optimize());
  std::vector<ComputeGraph::Storage> storages;
  for (const Value product : chain.products) storages.push_back(get(graph.storage(product)));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(storages[i].home, Home::kArena);
    EXPECT_EQ(storages[i].bytes, Chain::kValue);
    EXPECT_EQ(storages[i].last, storages[i + 1].first) << "read by the next product and nobody else";
  }
  EXPECT_EQ(storages[3].home, Home::kBound) << "a result of the graph is in the executor's own memory";
  // Two are alive at once: the third takes the place of the first.
  EXPECT_NE(storages[0].offset, storages[1].offset);
  EXPECT_EQ(storages[0].offset, storages[2].offset);
  const ComputeGraph::Memory memory = get(graph.memory());
  EXPECT_EQ(memory.temporaries, 2 * Chain::kValue);
  EXPECT_EQ(memory.temporaries, memory.at_least) << "no plan needs less";
  chain.expect_right();
}

TEST_F(ComputeGraphVocabulary, MemoryPlannerOfAView) {
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {4, 6}));
  const Value sorted = get(graph.add("aten::sort", {x}));
  const Value turned = get(graph.add("aten::transpose.int", {sorted.result(1), 0, 1}));
  expect_ok(graph.output("y", get(graph.add("aten::cumsum", {turned, 0}))));
  expect_ok(graph.optimize());
  const ComputeGraph::Storage values = get(graph.storage(sorted)), indices = get(graph.storage(sorted.result(1)));
  EXPECT_EQ(indices.bytes, 4u * 6 * sizeof(int64_t));
  EXPECT_EQ(get(graph.storage(turned)).offset, indices.offset) << "a view lies where its base does";
  EXPECT_NE(values.offset, indices.offset);
  EXPECT_EQ(get(graph.storage(x)).home, Home::kBound);
  EXPECT_EQ(get(graph.storage(x, kAccelerator)).home, Home::kNone);
  expect_error(graph.storage(x, 200).status(), "no device 200");
}

TEST_F(ComputeGraphVocabulary, DeviceSyncManager) {
  const Simulated simulated;
  Chain chain(4);
  ComputeGraph& graph = chain.graph;
  // Two readers on the CPU of what the accelerator makes.
  const Value first = get(graph.add("aten::cumsum", {chain.products[1], 0}));
  const Value second = get(graph.add("aten::cumsum", {chain.products[1], 1}));
  expect_ok(graph.output("first", first));
  expect_ok(graph.output("second", second));
  for (const Value product : chain.products) expect_ok(graph.prefer(product, Preference::kAccelerator));
  for (const Value reader : {first, second}) expect_ok(graph.prefer(reader, Preference::kCpu));
  expect_ok(graph.optimize());
  const ComputeGraph::Statistics here = get(graph.statistics(kCpu));
  const ComputeGraph::Statistics there = get(graph.statistics(kAccelerator));
  // What is available on a device is remembered: once for both readers, and weights before the run.
  EXPECT_EQ(here.copied_bytes, Chain::kValue);
  EXPECT_EQ(here.copies, 1u);
  EXPECT_EQ(there.copies, 0u);
  EXPECT_EQ(get(graph.storage(chain.products[1], kCpu)).bytes, Chain::kValue);
  // Queues wait for events of each other: the copy for the product, the CPU for the copy.
  EXPECT_GE(here.waits, 1u);
  EXPECT_GE(there.waits, 1u);
  for (int run = 0; run < 3; ++run) {
    at::Tensor y = at::zeros({Chain::kRows, Chain::kWidth}), a = at::zeros_like(y), b = at::zeros_like(y);
    expect_ok(graph.execute({view_of(chain.x)}, {view_of(y), view_of(a), view_of(b)}));
    const at::Tensor middle = at::mm(at::mm(chain.x, chain.weights[0]), chain.weights[1]);
    EXPECT_TRUE(at::allclose(y, chain.expected(), 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(a, middle.cumsum(0), 1e-4, 1e-4));
    EXPECT_TRUE(at::allclose(b, middle.cumsum(1), 1e-4, 1e-4));
  }
}

TEST_F(ComputeGraphVocabulary, DeviceSelector) {
  const Simulated simulated;
  Chain chain(6);
  ComputeGraph& graph = chain.graph;
  const auto statistics = [&](backend::DeviceIndex device) { return get(graph.statistics(device)); };
  const auto requested = [](const ComputeGraph::Statistics& of) {
    const auto found = of.reasons.find(Reason::kRequested);
    return found == of.reasons.end() ? 0 : found->second;
  };
  // Static: one device for all.
  for (const auto& [policy, device] : {std::pair{Policy::kCpu, kCpu}, {Policy::kAccelerator, kAccelerator}}) {
    graph.set_policy(policy);
    expect_ok(graph.optimize());
    EXPECT_EQ(statistics(device).nodes, 6u);
    EXPECT_EQ(requested(statistics(device)), 6u);
    EXPECT_GT(statistics(device).seconds, 0);
    chain.expect_right();
  }
  // Dynamic: the planner, by predicted time.
  graph.set_policy(Policy::kAuto);
  expect_ok(graph.optimize());
  EXPECT_EQ(statistics(kCpu).nodes + statistics(kAccelerator).nodes, 6u);
  EXPECT_EQ(requested(statistics(kCpu)) + requested(statistics(kAccelerator)), 0u);
  // Hybrid: some by preference, the rest by the planner.
  const auto other = statistics(kCpu).nodes == 6 ? Preference::kAccelerator : Preference::kCpu;
  expect_ok(graph.prefer(chain.products[0], other));
  expect_ok(graph.optimize());
  EXPECT_EQ(requested(statistics(kCpu)) + requested(statistics(kAccelerator)), 1u);
  EXPECT_NE(describe(graph).find("1 requested"), std::string::npos) << describe(graph);
  chain.expect_right();
}

TEST_F(ComputeGraphVocabulary, MemoryManager) {
  const Simulated simulated;
  Chain chain(12);
  ComputeGraph& graph = chain.graph;
  graph.set_policy(Policy::kAccelerator);
  expect_ok(graph.optimize());
  const ComputeGraph::Memory whole = get(graph.memory(kAccelerator));
  EXPECT_EQ(whole.constants, 12 * Chain::kMatrix) << "all are retained";
  EXPECT_EQ(get(graph.statistics(kAccelerator)).copies, 0u);
  // A budget for half of the weights: the others come in each run, ahead of their use.
  const uint64_t budget = 6 * Chain::kMatrix + 8 * Chain::kValue;
  graph.set_memory_budget(budget);
  expect_ok(graph.optimize());
  const ComputeGraph::Memory memory = get(graph.memory(kAccelerator));
  EXPECT_EQ(memory.budget, budget);
  EXPECT_LE(memory.pressure(), 1) << "the budget is kept";
  EXPECT_GT(memory.pressure(), 0.5) << "and used";
  EXPECT_GE(get(graph.statistics(kAccelerator)).copied_bytes, 4 * Chain::kMatrix);
  EXPECT_EQ(get(graph.statistics(kAccelerator)).nodes, 12u);
  for (int run = 0; run < 2; ++run) chain.expect_right();
}

TEST_F(ComputeGraphVocabulary, OffloadingStrategy) {
  const Simulated simulated;
  Chain chain(8);
  ComputeGraph& graph = chain.graph;
  const auto reasons = [&](backend::DeviceIndex device) { return get(graph.statistics(device)).reasons; };
  using Reasons = std::map<Reason, size_t>;
  // Not so many times as fast on the accelerator.
  graph.set_policy(Policy::kThresholds, {.time_ratio = 1e9});
  expect_ok(graph.optimize());
  EXPECT_EQ(reasons(kCpu), (Reasons{{Reason::kThreshold, 8}}));
  // Fast enough, until the accelerator's memory is filled to its share.
  graph.set_policy(Policy::kThresholds, {.pressure = 0.5, .time_ratio = 0});
  graph.set_memory_budget(8 * Chain::kMatrix + 4 * Chain::kValue);
  expect_ok(graph.optimize());
  EXPECT_EQ(reasons(kAccelerator).size(), 1u);
  EXPECT_EQ(reasons(kCpu).size(), 1u);
  EXPECT_GE(reasons(kAccelerator)[Reason::kFaster], 2u);
  EXPECT_GE(reasons(kCpu)[Reason::kNoMemory], 4u);
  EXPECT_LE(get(graph.memory(kAccelerator)).pressure(), 0.6);
  chain.expect_right();
  // Its defaults, and the cost model's choice, which is the default.
  EXPECT_EQ(graph::Thresholds().pressure, 0.8);
  EXPECT_EQ(graph::Thresholds().time_ratio, 2.0);
  graph.set_policy(Policy::kAuto);
  expect_ok(graph.optimize());
  EXPECT_EQ(reasons(kCpu).count(Reason::kThreshold) + reasons(kAccelerator).count(Reason::kThreshold), 0u);
  chain.expect_right();
}

TEST_F(ComputeGraphVocabulary, PipelineExecutor) {
  Chain chain(6);
  ComputeGraph& graph = chain.graph;
  const auto pipeline = get(StagePipeline::create(get(graph.model()), {.stages = 2}));
  ASSERT_NE(pipeline, nullptr);
  EXPECT_EQ(pipeline->depth(), 4u) << "double buffers: each stage has one in work and one that waits";
  Tensors results;
  std::vector<std::shared_ptr<StageRequest>> requests;
  for (int step = 0; step < 6; ++step) {
    results.push_back(at::zeros({Chain::kRows, Chain::kWidth}));
    const TensorView in[] = {view_of(chain.x)}, out[] = {view_of(results.back())};
    requests.push_back(get(pipeline->submit(in, out)));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    expect_ok(requests[i]->wait());
    EXPECT_TRUE(at::allclose(results[i], chain.expected(), 1e-4, 1e-5));
  }
  EXPECT_EQ(pipeline->counts().completed, 6);
  expect_ok(pipeline->set_depth(1));
  EXPECT_EQ(pipeline->depth(), 1u);
}

TEST_F(ComputeGraphVocabulary, OperatorFuserVertical) {
  Perceptron net;
  ComputeGraph& graph = net.graph;
  expect_ok(graph.optimize());
  // The activation is computed with the product.
  EXPECT_NE(describe(graph).find("fused g0"), std::string::npos) << describe(graph);
  set_option("fusion", "false");
  expect_ok(graph.optimize());
  EXPECT_EQ(describe(graph).find("fused g0"), std::string::npos) << describe(graph);
}

TEST_F(ComputeGraphVocabulary, OperatorFuserHorizontal) {
  ComputeGraph graph;
  const at::Tensor x = numbers({8, 32});
  const Value in = get(graph.input("x", "f32", {8, 32}));
  Tensors weights;
  for (const char* name : {"query", "key", "value"}) {
    weights.push_back(numbers({32, 32}, weights.size() + 2));
    const Value weight = get(graph.constant(name, view_of(weights.back())));
    expect_ok(graph.output(std::string(name) + "s", get(graph.add("aten::linear", {in, weight}))));
  }
  expect_ok(graph.optimize());
  EXPECT_NE(describe(graph).find("batch t0"), std::string::npos) << describe(graph);
  Tensors results;
  std::vector<TensorView> views;
  for (int i = 0; i < 3; ++i) {
    results.push_back(at::zeros({8, 32}));
    views.push_back(view_of(results.back()));
  }
  expect_ok(graph.execute({view_of(x)}, views));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(results[i], at::linear(x, weights[i]), 1e-5, 1e-5));
}

// Two layers with a gate, of any number of rows.
struct Gated {
  at::Tensor x = numbers({4, 8}), w1 = numbers({16, 8}, 2), b1 = numbers({16}, 3), w2 = numbers({16, 16}, 4);
  ComputeGraph graph;
  Value hidden, active, other, last;

  Gated() {
    const auto get = [](Result<Value> value) { return ComputeGraphTest::get(std::move(value)); };
    const GraphSize rows = ComputeGraphTest::get(graph.dimension("rows", 1, 64));
    const Value in = get(graph.input("x", "f32", {rows, 8}));
    hidden = get(graph.add("aten::linear",
                           {in, get(graph.constant("w1", view_of(w1))), get(graph.constant("b1", view_of(b1)))}));
    active = get(graph.add("aten::silu", {hidden}));
    other = get(graph.add("aten::linear", {active, get(graph.constant("w2", view_of(w2)))}));
    last = get(graph.add("aten::silu", {other}));
    ComputeGraphTest::expect_ok(graph.output("y", last));
  }
  at::Tensor expected(const at::Tensor& of) const { return at::silu(at::linear(at::silu(at::linear(of, w1, b1)), w2)); }
  void expect_right() {
    for (const int64_t rows : {4, 7}) {
      const at::Tensor given = numbers({rows, 8}, static_cast<uint64_t>(rows));
      EXPECT_TRUE(at::allclose(ComputeGraphTest::execute(graph, {given}, {rows, 16}), expected(given), 1e-5, 1e-5));
    }
  }
};

TEST_F(ComputeGraphVocabulary, OperatorFuserOfTheUser) {
  Gated net;
  ComputeGraph& graph = net.graph;
  expect_ok(graph.register_fusion({"aten::linear", "aten::silu"}, "hetero_vocabulary::linear_silu"));
  expect_ok(graph.optimize());
  EXPECT_EQ(graph.fusions().at(0).uses, 2u);
  EXPECT_TRUE(get(graph.cost(net.hidden)).parts.empty());
  EXPECT_EQ(get(graph.cost(net.active)).parts.at(0).op, "hetero_vocabulary::linear_silu");
  EXPECT_NE(describe(graph).find("fusion hetero_vocabulary::linear_silu for aten::linear aten::silu: 2 times"),
            std::string::npos);
  EXPECT_NE(describe(graph).find("fused into 4"), std::string::npos) << describe(graph);
  net.expect_right();
  // A result that is read by another node, or is an output, stays.
  expect_ok(graph.output("hidden", net.hidden));
  expect_ok(graph.optimize());
  EXPECT_EQ(graph.fusions().at(0).uses, 1u);
  // So it does without fusion.
  set_option("fusion", "false");
  expect_ok(graph.optimize());
  EXPECT_EQ(graph.fusions().at(0).uses, 0u);
}

TEST_F(ComputeGraphVocabulary, OperatorFuserOfTheUserOnTheAccelerator) {
  const Simulated simulated;
  Gated net;
  ComputeGraph& graph = net.graph;
  expect_ok(graph.register_fusion({"aten::linear", "aten::silu"}, "hetero_vocabulary::linear_silu"));
  for (const Value node : {net.hidden, net.active}) expect_ok(graph.prefer(node, Preference::kAccelerator));
  // These two disagree.
  expect_ok(graph.prefer(net.other, Preference::kAccelerator));
  expect_ok(graph.prefer(net.last, Preference::kCpu));
  expect_ok(graph.optimize());
  EXPECT_EQ(graph.fusions().at(0).uses, 1u);
  EXPECT_EQ(get(graph.cost(net.active)).parts.at(0).device, kAccelerator);
  net.expect_right();
}

TEST_F(ComputeGraphVocabulary, OperatorFuserKeepsTheOrderOfWrites) {
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {4}));
  const Value product = get(graph.add("aten::mul.Scalar", {x, 2}));
  get(graph.add("aten::add_.Scalar", {x, 1}));
  expect_ok(graph.output("y", get(graph.add("aten::relu", {product}))));
  const Value again = get(graph.add("aten::mul.Scalar", {x, 3}));
  expect_ok(graph.output("z", get(graph.add("aten::relu", {again}))));
  expect_ok(graph.register_fusion({"aten::mul.Scalar", "aten::relu"}, "hetero_vocabulary::scaled_relu"));
  at::Tensor given = numbers({4}), y = at::zeros({4}), z = at::zeros({4});
  const at::Tensor before = given.clone();
  expect_ok(graph.execute({view_of(given)}, {view_of(y), view_of(z)}));
  EXPECT_EQ(graph.fusions().at(0).uses, 1u) << "the first product reads x before it is written";
  expect_same(y, at::relu(at::mul(before, 2)));
  expect_same(z, at::relu(at::mul(before.add(1), 3)));
}

TEST_F(ComputeGraphVocabulary, OperatorFuserRefusesWhatDoesNotFit) {
  Gated net;
  const auto refused = [&](std::vector<std::string> chain, const char* op, const char* message) {
    expect_error(net.graph.register_fusion(std::move(chain), op), message);
  };
  refused({}, "hetero_vocabulary::linear_silu", "of one operator at least");
  refused({"aten::linear", "aten::no_such"}, "hetero_vocabulary::linear_silu", "no operator 'aten::no_such'");
  refused({"aten::linear", "aten::silu"}, "hetero_vocabulary::no_such", "no operator 'hetero_vocabulary::no_such'");
  refused({"aten::linear", "aten::silu"}, "hetero_vocabulary::two_tensors",
          "hetero_vocabulary::two_tensors takes (Tensor input, Tensor weight), and aten::linear, aten::silu take "
          "(Tensor input, Tensor weight, Tensor? bias)");
  refused({"aten::linear", "aten::add.Tensor"}, "hetero_vocabulary::linear_silu", "Tensor other, Scalar alpha)");
  refused({"aten::linear", "aten::silu_"}, "hetero_vocabulary::linear_silu", "neither writes nor views");
  refused({"aten::linear", "aten::view"}, "hetero_vocabulary::linear_silu", "neither writes nor views");
  refused({"aten::linear", "aten::silu"}, "hetero_vocabulary::writes", "neither writes nor views");
  refused({"aten::sort", "aten::silu"}, "hetero_vocabulary::linear_silu", "makes one tensor");
  refused({"aten::linear", "aten::cat"}, "hetero_vocabulary::linear_silu", "is the result of the one before");
  EXPECT_TRUE(net.graph.fusions().empty());
  net.expect_right();
}

TEST_F(ComputeGraphVocabulary, OperatorFuserRefusesAnOperatorThatMakesSomethingElse) {
  {
    Gated net;
    expect_ok(net.graph.register_fusion({"aten::linear", "aten::silu"}, "hetero_vocabulary::narrow_silu"));
    expect_error(net.graph.optimize(), "hetero_vocabulary::narrow_silu for aten::linear, aten::silu gives f32[");
  }
  Gated net;
  expect_ok(net.graph.register_fusion({"aten::linear", "aten::silu"}, "hetero_vocabulary::no_meta"));
  expect_error(net.graph.optimize(), "hetero_vocabulary::no_meta for aten::linear, aten::silu: ");
}

TEST_F(ComputeGraphVocabulary, MemoryOptimizer) {
  // In place: what a kernel keeps to itself has no memory.
  ComputeGraph graph;
  Value at = get(graph.input("x", "f32", {64, 64}));
  std::vector<Value> between;
  for (const char* op : {"aten::relu", "aten::neg", "aten::exp"}) between.push_back(at = get(graph.add(op, {at})));
  expect_ok(graph.output("y", at));
  expect_ok(graph.optimize());
  for (const Value value : {between[0], between[1]}) EXPECT_EQ(get(graph.storage(value)).home, Home::kNone);
  EXPECT_EQ(get(graph.memory()).temporaries, 0u);
  // Reuse: a long chain takes what two of its values take.
  Chain chain(20);
  expect_ok(chain.graph.optimize());
  EXPECT_EQ(get(chain.graph.memory()).temporaries, 2 * Chain::kValue);
}

TEST_F(ComputeGraphVocabulary, MemoryOptimizerMixedPrecision) {
  Chain chain(3);
  ComputeGraph& graph = chain.graph;
  const Value soft = get(graph.add("aten::softmax", {chain.products.back(), -1}));
  expect_ok(graph.output("soft", soft));
  expect_ok(graph.optimize());
  EXPECT_EQ(get(graph.storage(chain.products[1])).bytes, Chain::kValue);
  EXPECT_EQ(get(graph.memory()).constants, 3 * Chain::kMatrix);
  expect_ok(graph.set_precision("bf16"));
  expect_ok(graph.optimize());
  EXPECT_EQ(get(graph.storage(chain.products[1])).bytes, Chain::kValue / 2);
  EXPECT_EQ(get(graph.memory()).constants, 3 * Chain::kMatrix / 2) << "weights were cast once";
  EXPECT_EQ(get(graph.cost(chain.products[1])).parts.size(), 1u) << "and are not cast by a run";
  EXPECT_EQ(get(graph.cost(chain.products[1])).parts.at(0).op, "aten::mm");
  EXPECT_EQ(to_string(get(graph.look(soft))), "f32[32,64]");
  at::Tensor y = at::zeros({Chain::kRows, Chain::kWidth}), z = at::zeros_like(y);
  expect_ok(graph.execute({view_of(chain.x)}, {view_of(y), view_of(z)}));
  EXPECT_TRUE(at::allclose(y, chain.expected(), 0.05, 0.05));
  EXPECT_FALSE(at::allclose(y, chain.expected(), 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(z, at::softmax(chain.expected(), -1), 0.05, 0.01));
  expect_error(graph.set_precision("i64"), "a precision is 'f32', 'bf16' or 'f16', and not 'i64'");
  // With sizes that the caller chooses.
  Gated net;
  expect_ok(net.graph.set_precision("bf16"));
  for (const int64_t rows : {4, 7}) {
    const at::Tensor given = numbers({rows, 8}, static_cast<uint64_t>(rows));
    EXPECT_TRUE(at::allclose(execute(net.graph, {given}, {rows, 16}), net.expected(given), 0.05, 0.1));
  }
  // Nothing of it is left on this thread.
  expect_ok(net.graph.set_precision("f32"));
  net.expect_right();
}

TEST_F(ComputeGraphVocabulary, OperatorFactory) {
  ComputeGraph graph;
  const Value x = get(graph.input("x", "f32", {3, 8}));
  const at::Tensor w = numbers({5, 8}, 2), given = numbers({3, 8});
  // By name: PyTorch's, composed ones too, and those of a user's library.
  const Value composed = get(graph.add("aten::square", {x}));
  const Value own =
      get(graph.add("hetero_vocabulary::linear_silu", {composed, get(graph.constant("w", view_of(w))), nullptr}));
  expect_ok(graph.output("y", own));
  expect_ok(graph.optimize());
  EXPECT_EQ(get(graph.cost(composed)).parts.at(0).op, "aten::pow.Tensor_Scalar");
  EXPECT_EQ(get(graph.cost(own)).parts.at(0).op, "hetero_vocabulary::linear_silu");
  EXPECT_TRUE(at::allclose(execute(graph, {given}, {3, 5}), at::silu(at::linear(given.square(), w)), 1e-5, 1e-5));
  expect_error(graph.add("hetero_vocabulary::no_such", {x}).status(), "PyTorch has no operator");
}

}  // namespace
}  // namespace hetero::ops::testing
