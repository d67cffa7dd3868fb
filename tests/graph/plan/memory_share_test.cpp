// Executors, lanes and stages that share an accelerator keep its memory limit together.

#include <algorithm>
#include <random>

#include "backend/sim/sim_device.h"
#include "graph/program/program_sizes.h"
#include "graph/serve/server.h"
#include "graph/serve/stage_pipeline.h"
#include "tests/catch/catch.h"
#include "tests/graph/fixtures/dynamic_program.h"
#include "tests/graph/fixtures/static_program.h"

namespace hetero::graph::testing {
namespace {

using backend::kAccelerator;
using backend::kCpu;

constexpr int64_t kFloats = 1024;
constexpr uint64_t kWeight = kFloats * sizeof(float);

// An accelerator of its own for each test, with a limit that its peak is held against.
struct Accelerator {
  explicit Accelerator(uint64_t limit) {
    auto made = backend::SimDevice::create();
    require(made.status());
    sim = std::move(made.value());
    sim->set_memory_limit(limit);
    devices = {test_devices()[kCpu], sim.get()};
  }
  PlanOptions plan() const {
    PlanOptions plan = options_for(devices);
    plan.policy = Policy::kAccelerator;
    return plan;
  }
  GraphExecutor::Options options(size_t slots = 1) const {
    GraphExecutor::Options chosen = executor_options(plan(), devices);
    chosen.slots = slots;
    return chosen;
  }
  uint64_t allocated() const { return static_cast<uint64_t>(sim->memory_stats().allocated_bytes); }
  bool is_within_limit() const {
    const backend::MemoryStats stats = sim->memory_stats();
    return stats.peak_bytes <= stats.limit_bytes;
  }

  std::unique_ptr<backend::SimDevice> sim;
  Devices devices;
};

// Layers, each with a weight of its own.
struct Layers {
  explicit Layers(int count) {
    BufferId last = p.input(kFloats);
    std::set<BufferId> weights;
    for (int i = 0; i < count; ++i) {
      const BufferId w = p.input(kFloats);
      weights.insert(w);
      last = p.define(test_ops().matmul, kFloats, {p.read(last), p.read(w)}, Preference::kAuto, static_cast<float>(i));
    }
    p.escape(last);
    model = model_of(save(p, weights));
    expected = p.interpret();
  }
  Program p;
  std::shared_ptr<Model> model;
  Results expected;
};

uint64_t held(const GraphExecutor& executor) { return executor.bytes(kAccelerator) + executor.weight_bytes(); }

// In every slot.
void check_values(GraphExecutor& executor, Program& program, const Results& expected) {
  for (size_t slot = 0; slot < executor.slots(); ++slot) {
    set_inputs(executor, program, slot);
    require(executor.Run(slot));
    CHECK(has_values(executor, expected, slot));
  }
}

}  // namespace

TEST_CASE("an executor plans for what others have left of the accelerator's memory") {
  // Enough for one of them, and a part of the other.
  constexpr uint64_t kLimit = 24 * kWeight;
  const Accelerator accelerator(kLimit);
  Layers first(12);
  Layers second(12);
  const auto whole = executor_of(first.model, accelerator.options());
  CHECK(whole->weight_bytes() == 12 * kWeight);
  const auto part = executor_of(second.model, accelerator.options());
  CHECK(held(*whole) + held(*part) == accelerator.allocated());
  CHECK(part->weight_bytes() < 12 * kWeight);
  CHECK_FALSE(uses_host_only(part->plan().plan));
  check_values(*whole, first.p, first.expected);
  check_values(*part, second.p, second.expected);
  // Where nothing is left, there is the CPU.
  Layers third(12);
  backend::Block rest;
  if (accelerator.allocated() < kLimit) rest = allocate(*accelerator.sim, kLimit - accelerator.allocated());
  const auto none = executor_of(third.model, accelerator.options());
  CHECK(uses_host_only(none->plan().plan));
  check_values(*none, third.p, third.expected);
  CHECK(accelerator.is_within_limit());
}

TEST_CASE("slots count as often as there are") {
  // Inputs and outputs of one slot fit, those of eight do not.
  const Accelerator accelerator(8 * kWeight);
  Layers layers(2);
  const auto many = executor_of(layers.model, accelerator.options(8));
  check_values(*many, layers.p, layers.expected);
  CHECK(accelerator.is_within_limit());
  CHECK(held(*many) == accelerator.allocated());
}

TEST_CASE("random programs of several executors keep the limit, whatever it is") {
  std::mt19937 random(51);
  int used = 0;
  for (int round = 0; round < 60; ++round) {
    const Accelerator accelerator(1024 + random() % 16384);
    // What others hold comes and goes.
    std::vector<backend::Block> others;
    std::vector<std::unique_ptr<GraphExecutor>> executors;
    for (int e = 0; e < 4; ++e) {
      Program p;
      make_random(p, random, 5 + round % 20, false);
      auto saved = save(p);
      for (Buffer& buffer : p.graph.buffers) buffer.escapes |= buffer.valid_on != 0;
      const Results expected = p.interpret();
      executors.push_back(executor_of(model_of(std::move(saved)), accelerator.options(1 + random() % 3)));
      check_values(*executors.back(), p, expected);
      used += held(*executors.back()) > 0;
      const uint64_t left = accelerator.sim->memory_stats().bytes_left();
      if (left > 256 && random() % 2 == 0) others.push_back(allocate(*accelerator.sim, left / 4));
      if (random() % 3 == 0) executors.erase(executors.begin());
    }
    CHECK(accelerator.is_within_limit());
  }
  CHECK(used > 60);
}

TEST_CASE("an executor keeps to the bytes that it is given, and is refused more than there are") {
  const Accelerator accelerator(18 * kWeight);
  Layers layers(12);
  for (const uint64_t share : {uint64_t{0}, 5 * kWeight, 9 * kWeight, 17 * kWeight}) {
    GraphExecutor::Options options = accelerator.options();
    options.accelerator_bytes = share;
    // Weights stay as long as the model.
    Layers own(12);
    const auto executor = executor_of(own.model, std::move(options));
    CHECK(executor->accelerator_share() == share);
    CHECK(held(*executor) <= share);
    CHECK(held(*executor) == accelerator.allocated());
    CHECK(uses_host_only(executor->plan().plan) == (share == 0));
    check_values(*executor, own.p, own.expected);
  }
  GraphExecutor::Options options = accelerator.options();
  options.accelerator_bytes = 19 * kWeight;
  const Status refused = GraphExecutor::Init(layers.model, std::move(options)).status();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error_class() == ErrorClass::kResource);
  CHECK(refused.message() ==
        "the executor was to have 76.00 KiB of the accelerator's memory, and 72.00 KiB are left of its 72.00 KiB; give "
        "it "
        "less, or free what others hold there");
  CHECK(accelerator.allocated() == 0);
}

TEST_CASE("other sizes are planned for what the executor may have") {
  const Accelerator accelerator(4096);
  for (const bool is_given : {true, false}) {
    const auto model = model_of(make_dynamic());
    const auto on_cpu = executor_of(model, executor_options(cpu_options()));
    GraphExecutor::Options options = accelerator.options();
    if (is_given) options.accelerator_bytes = 2048;
    const auto executor = executor_of(model, std::move(options));
    int with_accelerator = 0;
    for (const auto& [a, b] : {std::pair{3, 8}, {9, 12}, {2, 3}, {20, 30}, {100, 90}, {4, 9}}) {
      const std::vector<int64_t> sizes = {a, b};
      Result<std::vector<TensorShape>> shapes = output_shapes(model->program(), sizes);
      require(shapes.status());
      std::vector<std::vector<float>> found, expected;
      for (GraphExecutor* one : {executor.get(), on_cpu.get()}) {
        require(one->SetSizes(sizes));
        for (size_t i = 0; i < one->inputs().size(); ++i) {
          const auto floats = one->program().graph.buffers[one->inputs()[i].buffer].bytes / sizeof(float);
          std::vector<float> values(floats, 0.25f * static_cast<float>(i));
          require(one->SetInput(i, view_of(values)));
        }
        require(one->Run());
        for (size_t o = 0; o < one->outputs().size(); ++o) {
          // The state goes on from run to run, and what is made of it, so they differ between executors.
          const ProgramValue& output = one->outputs()[o];
          if (model->is_constant(output.buffer) || one->program().windows[output.window].numel == 4) continue;
          auto& values = (one == on_cpu.get() ? expected : found).emplace_back(shapes.value()[o].sizes[0]);
          require(one->GetOutput(o, view_of(values)));
        }
      }
      CHECK(found == expected);
      with_accelerator += !uses_host_only(executor->plan().plan);
      CHECK(held(*executor) == accelerator.allocated());
      CHECK(held(*executor) <= (is_given ? 2048 : 4096));
    }
    CHECK(with_accelerator > 2);
  }
  CHECK(accelerator.is_within_limit());
}

TEST_CASE("lanes of a server have equal parts of the accelerator's memory beside the weights, which are there once") {
  for (const size_t lanes : {2, 3}) {
    for (const uint64_t limit : {16 * kWeight, 20 * kWeight, 28 * kWeight, 100 * kWeight}) {
      const Accelerator accelerator(limit);
      Layers own(8);
      Server::Options options;
      for (size_t lane = 0; lane < lanes; ++lane) options.lanes.push_back({.name = "lane", .threads = 1});
      options.executor = [&] { return accelerator.options(); };
      auto server = Server::create(own.model, std::move(options));
      require(server.status());
      uint64_t all = 0;
      for (size_t lane = 0; lane < lanes; ++lane) {
        const GraphExecutor& executor = server.value()->executor(lane);
        all += held(executor);
        CHECK(executor.bytes(kAccelerator) == server.value()->executor(0).bytes(kAccelerator));
        CHECK((executor.weight_bytes() == 0 || lane == 0));
      }
      CHECK(all == accelerator.allocated());
      if (limit == 100 * kWeight) CHECK(server.value()->executor(0).weight_bytes() == 8 * kWeight);
      CHECK_FALSE(uses_host_only(server.value()->executor(lanes - 1).plan().plan));
      std::vector<std::vector<float>> in(20, std::vector<float>(kFloats, 1.5f));
      std::vector<std::vector<float>> out(20, std::vector<float>(kFloats));
      std::vector<std::shared_ptr<Server::Request>> requests;
      for (size_t r = 0; r < in.size(); ++r) {
        auto request = server.value()->submit({view_of(in[r])}, {view_of(out[r])});
        require(request.status());
        requests.push_back(request.value());
      }
      for (size_t r = 0; r < in.size(); ++r) {
        require(requests[r]->wait());
        CHECK(out[r] == out[0]);
      }
      CHECK(accelerator.is_within_limit());
    }
  }
}

TEST_CASE("a server is refused more of the accelerator's memory than is left") {
  const Accelerator accelerator(8 * kWeight);
  Layers layers(4);
  const backend::Block others = allocate(*accelerator.sim, 4 * kWeight);
  Server::Options options;
  options.lanes = {{.name = "left", .threads = 1}, {.name = "right", .threads = 1}};
  options.executor = [&] { return accelerator.options(); };
  options.accelerator_bytes = 6 * kWeight;
  CHECK(
      contains(Server::create(layers.model, options).status(), "24.00 KiB of the accelerator's memory, and 16.00 KiB"));
  options.accelerator_bytes = 3 * kWeight;
  const auto server = Server::create(layers.model, options);
  require(server.status());
  CHECK(accelerator.allocated() <= 7 * kWeight);
}

TEST_CASE("stages on one accelerator keep its limit together, and each has a part of it") {
  constexpr int kLayers = 12;
  for (const uint64_t limit : {16 * kWeight, 20 * kWeight, 100 * kWeight}) {
    const Accelerator accelerator(limit);
    Layers layers(kLayers);
    StagePipeline::Options options{.stages = 3};
    options.devices = accelerator.devices;
    options.plans.assign(3, accelerator.plan());
    auto pipeline = StagePipeline::create(layers.model, std::move(options));
    require(pipeline.status());
    uint64_t all = 0;
    uint64_t weights = 0;
    for (size_t stage = 0; stage < 3; ++stage) {
      const GraphExecutor& executor = pipeline.value()->executor(stage);
      all += held(executor);
      weights += executor.weight_bytes();
      CHECK_FALSE(uses_host_only(executor.plan().plan));
    }
    CHECK(all == accelerator.allocated());
    CHECK((weights == kLayers * kWeight) == (limit == 100 * kWeight));
    const auto executor = executor_of(Layers(kLayers).model, executor_options(cpu_options()));
    std::vector<float> in(kFloats, 0.5f);
    std::vector<float> expected(kFloats);
    require(executor->SetInput(0, view_of(in)));
    require(executor->Run());
    require(executor->GetOutput(0, view_of(expected)));
    std::vector<std::vector<float>> out(6, std::vector<float>(kFloats));
    std::vector<std::shared_ptr<StageRequest>> requests;
    for (std::vector<float>& one : out) {
      const std::vector<TensorView> from = {view_of(in)};
      const std::vector<TensorView> to = {view_of(one)};
      auto request = pipeline.value()->submit(from, to);
      require(request.status());
      requests.push_back(request.value());
    }
    for (size_t r = 0; r < out.size(); ++r) {
      require(requests[r]->wait());
      CHECK(out[r] == expected);
    }
    CHECK(accelerator.is_within_limit());
  }
}

TEST_CASE("a pipeline keeps to the bytes that it is given") {
  const Accelerator accelerator(100 * kWeight);
  Layers layers(12);
  StagePipeline::Options options{.stages = 2};
  options.devices = accelerator.devices;
  options.plans.assign(2, accelerator.plan());
  options.accelerator_bytes = 101 * kWeight;
  CHECK(contains(StagePipeline::create(layers.model, options).status(), "give it less"));
  options.accelerator_bytes = 8 * kWeight;
  const auto pipeline = StagePipeline::create(layers.model, options);
  require(pipeline.status());
  CHECK(accelerator.allocated() > 0);
  CHECK(accelerator.allocated() <= 8 * kWeight);
}

}  // namespace hetero::graph::testing
